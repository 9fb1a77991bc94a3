<?php
// The steps of the client test with php-amqplib.
require_once 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPBasicCancelException;
use PhpAmqpLib\Exception\AMQPTimeoutException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

$addresses = explode(',', $argv[1]);
$prefix = $argv[2];

function connect(string $address, int $heartbeat = 60): AMQPStreamConnection
{
    [$host, $port] = explode(':', $address);
    return new AMQPStreamConnection($host, $port, 'guest', 'guest', '/', false, 'AMQPLAIN', null, 'en_US',
        10.0, max(2 * $heartbeat, 10.0), null, false, $heartbeat);
}

function reconnect(): AMQPStreamConnection
{
    global $addresses;
    for ($attempt = 0; $attempt < 300; $attempt++) {
        try {
            return connect($addresses[$attempt % count($addresses)]);
        } catch (\Exception $e) {
            usleep(100000);
        }
    }
    fail('no node lets us in');
}

function fail(string $why): void
{
    fwrite(STDERR, $why . "\n");
    exit(1);
}

function check(bool $holds, ...$what): void
{
    if (!$holds) {
        fail('check failed: ' . json_encode($what));
    }
}

function done(string $step): void
{
    echo "ok $step\n";
}

function ask(string $what): void
{
    echo "$what\n";
    fgets(STDIN);
}

function name(string $suffix): string
{
    global $prefix;
    return "$prefix.$suffix";
}

function publish($channel, string $exchange, string $key, string $body): void
{
    $channel->basic_publish(new AMQPMessage($body, ['delivery_mode' => 2]), $exchange, $key, true);
    $channel->wait_for_pending_acks_returns(30);
}

/** Inbox keeps what a consumer gets. */
class Inbox
{
    public array $messages = [];
    private string $tag;

    public function __construct(private $channel, string $queue)
    {
        $this->tag = $channel->basic_consume($queue, '', false, false, false, false,
            function (AMQPMessage $m) { $this->messages[] = $m; });
    }

    public function receive(): AMQPMessage
    {
        while (!$this->messages) {
            $this->channel->wait(null, false, 30);
        }
        return array_shift($this->messages);
    }

    public function close(): void
    {
        $this->channel->basic_cancel($this->tag);
    }
}

function wait_until_lost($channel): void
{
    try {
        while (true) {
            $channel->wait(null, false, 30);
        }
    } catch (AMQPTimeoutException $e) {
        fail('the connection is not lost');
    } catch (\Exception $e) {
    }
}

$connection = connect($addresses[2]);
$channel = $connection->channel();
$channel->confirm_select();
$channel->exchange_declare(name('x'), 'direct', false, true, false);
$channel->queue_declare(name('q'), false, true, false, false, false, new AMQPTable(['x-queue-type' => 'quorum']));
$channel->queue_bind(name('q'), name('x'), 'k');
done('declare');

for ($i = 0; $i < 100; $i++) {
    $channel->batch_basic_publish(new AMQPMessage("$i", ['delivery_mode' => 2]), name('x'), 'k', true);
}
$channel->publish_batch();
$channel->wait_for_pending_acks_returns(30);
done('confirms');

$channel->basic_qos(0, 10, false);
$inbox = new Inbox($channel, name('q'));
for ($i = 0; $i < 100; $i += 10) {
    while (count($inbox->messages) < 10) {
        $channel->wait(null, false, 30);
    }
    try {
        $channel->wait(null, false, 0.05);
    } catch (AMQPTimeoutException $e) {
    }
    $bodies = array_map(fn ($m) => (int) $m->body, $inbox->messages);
    check($bodies === range($i, $i + 9), $bodies);
    end($inbox->messages)->ack(true);
    $inbox->messages = [];
}
$inbox->close();
done('prefetch');

publish($channel, name('x'), 'k', 'again');
$inbox = new Inbox($channel, name('q'));
$m = $inbox->receive();
check(!$m->isRedelivered() && $m->body === 'again', $m->body);
$m->nack(true);
$m = $inbox->receive();
check($m->isRedelivered() && $m->body === 'again', $m->body);
$m->ack();
$inbox->close();
done('requeue');

$channel->queue_declare(name('dead'), false, true, false, false);
$channel->queue_declare(name('ttl'), false, true, false, false, false, new AMQPTable([
    'x-message-ttl' => 200, 'x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => name('dead'),
]));
publish($channel, '', name('ttl'), 'mortal');
$inbox = new Inbox($channel, name('dead'));
$m = $inbox->receive();
$death = $m->get('application_headers')->getNativeData()['x-death'][0];
check($m->body === 'mortal' && $death['reason'] === 'expired' && $death['queue'] === name('ttl'), $death);
$m->ack();
$inbox->close();
done('expiry');

$channel->queue_declare(name('gone'), false, true, false, false);
$inbox = new Inbox($channel, name('gone'));
$other = $connection->channel();
try {
    $other->queue_delete(name('gone'));
    $inbox->receive();
    fail('not cancelled');
} catch (AMQPBasicCancelException $e) {
}
done('cancel');

$silent = connect($addresses[1], 2);
$held = $silent->channel();
publish($channel, name('x'), 'k', 'held');
$inbox = new Inbox($held, name('q'));
$inbox->receive();
ask('freeze');
wait_until_lost($held);
$inbox = new Inbox($channel, name('q'));
$m = $inbox->receive();
check($m->isRedelivered() && $m->body === 'held', $m->body);
$m->ack();
$inbox->close();
done('silence');

publish($channel, name('x'), 'k', 'before');
ask('kill');
wait_until_lost($channel);
$connection = reconnect();
$channel = $connection->channel();
$channel->confirm_select();
publish($channel, name('x'), 'k', 'after');
$inbox = new Inbox($channel, name('q'));
foreach (['before', 'after'] as $want) {
    $m = $inbox->receive();
    check($m->body === $want, $m->body);
    $m->ack();
}
$connection->close();
done('reconnect');
