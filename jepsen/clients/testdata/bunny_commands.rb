# Commands with bunny: carries out the lines that commands_test.go describes.
require "bunny"
require "timeout"

$stdout.sync = true
host, port = ARGV[0].split(",")[0].split(":")
connection = Bunny.new(host: host, port: port.to_i, user: "guest", password: "guest", automatically_recover: false).start
CHANNEL = connection.create_channel
CHANNEL.confirm_select
CHANNEL.basic_qos(10)
REPLIES, INBOX, RETURNS = Queue.new, Queue.new, Queue.new
COMMANDS = Bunny::Exchange.new(CHANNEL, "x-command", "amq.quorate.command", no_declare: true)
COMMANDS.on_return { |info, _, _| RETURNS << info.reply_code }
CHANNEL.basic_consume("amq.rabbitmq.reply-to", "replies", true) { |_, properties, body| REPLIES << [properties.correlation_id, body] }

def value(text)
  kind, v = text.split(":", 2)
  case kind
  when "i" then v.to_i
  when "b" then v == "true"
  when "s" then v
  else v.split(",").map { |one| value("#{kind.downcase}:#{one}") }
  end
end

def table(fields) = fields.to_h { |f| f.split("=", 2).then { |name, v| [name, value(v)] } }

def say(*fields) = puts(fields.join("\t"))

def await(queue) = Timeout.timeout(30) { queue.pop }

def command(number, verb, body, *fields)
  COMMANDS.publish(body, routing_key: verb, mandatory: true, reply_to: "amq.rabbitmq.reply-to", correlation_id: number, headers: table(fields))
  acked = CHANNEL.wait_for_confirms
  code = RETURNS.empty? ? 0 : RETURNS.pop
  id, reply = await(REPLIES)
  abort "an answer to #{id}, not #{number}" if id != number
  say "answer", acked ? "ack" : "nack", code, reply
end

$stdin.each_line(chomp: true) do |line|
  what, *rest = line.split("\t", -1)
  case what
  when "declare"
    CHANNEL.queue(rest[0], durable: true, arguments: table(rest[1..]))
    say "ok"
  when "publish"
    CHANNEL.basic_publish(rest[1], "", rest[0], mandatory: true, headers: table(rest[2..]))
    abort "not confirmed" unless CHANNEL.wait_for_confirms
    say "ok"
  when "consume"
    CHANNEL.basic_consume(rest[0], rest[1], false, false, table(rest[2..])) { |delivery, properties, body| INBOX << [delivery, properties, body] }
    say "ok"
  when "next"
    delivery, properties, body = await(INBOX)
    say "delivery", delivery.delivery_tag.to_i, delivery.redelivered? ? 1 : 0, body, (properties.headers || {})["x-lock-token"]
  when "command" then command(*rest)
  end
end
connection.close
