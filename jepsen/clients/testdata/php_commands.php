<?php
// Commands with php-amqplib: carries out the lines that commands_test.go describes.
require_once 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

[$host, $port] = explode(':', explode(',', $argv[1])[0]);
$connection = new AMQPStreamConnection($host, $port, 'guest', 'guest');
$channel = $connection->channel();
$channel->confirm_select();
$channel->basic_qos(0, 10, false);

$outcome = 'nothing';
$code = 0;
$replies = $inbox = [];
$channel->set_ack_handler(function () use (&$outcome) { $outcome = 'ack'; });
$channel->set_nack_handler(function () use (&$outcome) { $outcome = 'nack'; });
$channel->set_return_listener(function ($reply) use (&$code) { $code = $reply; });
$channel->basic_consume('amq.rabbitmq.reply-to', '', false, true, false, false, function (AMQPMessage $m) use (&$replies) {
    $replies[$m->get('correlation_id')] = $m->body;
});

function value(string $text)
{
    [$kind, $v] = explode(':', $text, 2);
    return match ($kind) {
        'i' => (int) $v,
        'b' => $v === 'true',
        's' => $v,
        default => array_map(fn ($one) => value(strtolower($kind) . ":$one"), explode(',', $v)),
    };
}

function table(array $fields): AMQPTable
{
    $all = [];
    foreach ($fields as $f) {
        [$name, $v] = explode('=', $f, 2);
        $all[$name] = value($v);
    }
    return new AMQPTable($all);
}

function say(...$fields): void
{
    echo implode("\t", $fields) . "\n";
}

while (($line = fgets(STDIN)) !== false) {
    $rest = explode("\t", rtrim($line, "\n"));
    $what = array_shift($rest);
    switch ($what) {
        case 'declare':
            $channel->queue_declare($rest[0], false, true, false, false, false, table(array_slice($rest, 1)));
            say('ok');
            break;
        case 'publish':
            $channel->basic_publish(new AMQPMessage($rest[1], ['application_headers' => table(array_slice($rest, 2))]), '', $rest[0], true);
            $channel->wait_for_pending_acks_returns(30);
            say('ok');
            break;
        case 'consume':
            $channel->basic_consume($rest[0], $rest[1], false, false, false, false,
                function (AMQPMessage $m) use (&$inbox) { $inbox[] = $m; }, null, table(array_slice($rest, 2)));
            say('ok');
            break;
        case 'next':
            while (!$inbox) {
                $channel->wait(null, false, 30);
            }
            $m = array_shift($inbox);
            $headers = $m->has('application_headers') ? $m->get('application_headers')->getNativeData() : [];
            say('delivery', $m->getDeliveryTag(), (int) $m->isRedelivered(), $m->body, $headers['x-lock-token'] ?? '');
            break;
        case 'command':
            [$number, $verb, $body] = $rest;
            [$outcome, $code] = ['nothing', 0];
            $properties = ['reply_to' => 'amq.rabbitmq.reply-to', 'correlation_id' => $number, 'application_headers' => table(array_slice($rest, 3))];
            $channel->basic_publish(new AMQPMessage($body, $properties), 'amq.quorate.command', $verb, true);
            $channel->wait_for_pending_acks_returns(30);
            while (!isset($replies[$number])) {
                $channel->wait(null, false, 30);
            }
            say('answer', $outcome, $code, $replies[$number]);
            break;
    }
}
$connection->close();
