# The steps of the client test with bunny.
require "bunny"
require "logger"
require "timeout"

ADDRESSES, PREFIX = ARGV[0].split(","), ARGV[1]
$stdout.sync = true
Thread.report_on_exception = false

# Lost is told of a lost connection in place of the main thread.
class Lost < Queue
  def raise(*error) = push(error)
end

def connect(address, heartbeat: 60)
  host, port = address.split(":")
  lost = Lost.new
  connection = Bunny.new(host: host, port: port.to_i, user: "guest", password: "guest", heartbeat: heartbeat,
                         automatically_recover: false, session_error_handler: lost, logger: Logger.new(nil)).start
  connection.define_singleton_method(:lost) { lost }
  connection
end

def reconnect
  300.times do |attempt|
    return connect(ADDRESSES[attempt % ADDRESSES.size])
  rescue Bunny::Exception, SystemCallError, IOError
    sleep 0.1
  end
  abort "no node lets us in"
end

def done(step) = puts("ok #{step}")

def ask(what)
  puts what
  $stdin.gets
end

def name(suffix) = "#{PREFIX}.#{suffix}"

def check(holds, *what) = holds || abort("check failed: #{what.inspect}")

def publish(channel, exchange, key, body)
  channel.basic_publish(body, exchange, key, persistent: true, mandatory: true)
  check(channel.wait_for_confirms, "not confirmed", body)
end

def subscribe(queue, inbox)
  queue.subscribe(manual_ack: true) { |delivery, properties, body| inbox << [delivery, properties, body] }
end

def receive(inbox) = Timeout.timeout(30) { inbox.pop }

def await_lost(connection)
  Timeout.timeout(60) { sleep 0.01 until connection.closed? || !connection.lost.empty? }
end

connection = connect(ADDRESSES[2])
channel = connection.create_channel
channel.confirm_select
exchange = channel.direct(name("x"), durable: true)
queue = channel.queue(name("q"), durable: true, arguments: { "x-queue-type" => "quorum" })
queue.bind(exchange, routing_key: "k")
done "declare"

100.times { |i| channel.basic_publish(i.to_s, name("x"), "k", persistent: true, mandatory: true) }
check(channel.wait_for_confirms, "not confirmed")
done "confirms"

channel.basic_qos(10)
inbox = Queue.new
consumer = subscribe(queue, inbox)
10.times do |ten|
  batch = Array.new(10) { receive(inbox) }
  sleep 0.05
  check(inbox.empty? && batch.map { |m| m[2].to_i } == (ten * 10...ten * 10 + 10).to_a, batch.map(&:last))
  channel.ack(batch.last[0].delivery_tag, true)
end
done "prefetch"

publish(channel, name("x"), "k", "again")
delivery, _, body = receive(inbox)
check(!delivery.redelivered? && body == "again", body)
channel.nack(delivery.delivery_tag, false, true)
delivery, _, body = receive(inbox)
check(delivery.redelivered? && body == "again", body)
channel.ack(delivery.delivery_tag)
consumer.cancel
done "requeue"

dead = channel.queue(name("dead"), durable: true)
channel.queue(name("ttl"), durable: true, arguments: {
  "x-message-ttl" => 200, "x-dead-letter-exchange" => "", "x-dead-letter-routing-key" => name("dead")
})
publish(channel, "", name("ttl"), "mortal")
letters = Queue.new
consumer = subscribe(dead, letters)
delivery, properties, body = receive(letters)
death = properties.headers["x-death"][0]
check(body == "mortal" && death["reason"] == "expired" && death["queue"] == name("ttl"), body, death)
channel.ack(delivery.delivery_tag)
consumer.cancel
done "expiry"

cancelled = Queue.new
gone = channel.queue(name("gone"), durable: true)
gone.subscribe(on_cancellation: ->(*) { cancelled << true }) { nil }
connection.create_channel.queue_delete(name("gone"))
receive(cancelled)
done "cancel"

silent = connect(ADDRESSES[1], heartbeat: 2)
held = Queue.new
publish(channel, name("x"), "k", "held")
subscribe(silent.create_channel.queue(name("q"), passive: true), held)
receive(held)
ask "freeze"
await_lost(silent)
consumer = subscribe(queue, inbox)
delivery, _, body = receive(inbox)
check(delivery.redelivered? && body == "held", body)
channel.ack(delivery.delivery_tag)
consumer.cancel
done "silence"

publish(channel, name("x"), "k", "before")
ask "kill"
await_lost(connection)
connection = reconnect
channel = connection.create_channel
channel.confirm_select
publish(channel, name("x"), "k", "after")
inbox = Queue.new
subscribe(channel.queue(name("q"), passive: true), inbox)
%w[before after].each do |want|
  delivery, _, body = receive(inbox)
  check(body == want, body)
  channel.ack(delivery.delivery_tag)
end
connection.close
done "reconnect"
