"""The steps of the client test with pika."""
import sys
import time

import pika

addresses, prefix = sys.argv[1].split(","), sys.argv[2]


def connect(address, heartbeat=60):
    host, port = address.split(":")
    return pika.BlockingConnection(pika.ConnectionParameters(
        host, int(port), heartbeat=heartbeat, blocked_connection_timeout=60,
        credentials=pika.PlainCredentials("guest", "guest")))


def reconnect():
    for attempt in range(300):
        try:
            return connect(addresses[attempt % len(addresses)])
        except pika.exceptions.AMQPError:
            time.sleep(0.1)
    raise SystemExit("no node lets us in")


def done(step):
    print("ok " + step, flush=True)


def ask(what):
    print(what, flush=True)
    sys.stdin.readline()


def name(suffix):
    return prefix + "." + suffix


def check(holds, *what):
    if not holds:
        raise SystemExit("check failed: %r" % (what,))


def publish(channel, exchange, key, body):
    channel.basic_publish(exchange, key, body.encode(), pika.BasicProperties(delivery_mode=2), mandatory=True)


def receive(channel, queue):
    for message in channel.consume(queue, inactivity_timeout=30):
        check(message[0] is not None, "nothing came from", queue)
        return message


connection = connect(addresses[2])
channel = connection.channel()
channel.confirm_delivery()
channel.exchange_declare(name("x"), "direct", durable=True)
channel.queue_declare(name("q"), durable=True, arguments={"x-queue-type": "quorum"})
channel.queue_bind(name("q"), name("x"), "k")
done("declare")

for i in range(100):
    publish(channel, name("x"), "k", str(i))  # returns when it is confirmed
done("confirms")

channel.basic_qos(prefetch_count=10)
waiting = []
tag = channel.basic_consume(name("q"), lambda c, method, properties, body: waiting.append((method, body)))
for i in range(0, 100, 10):
    while len(waiting) < 10:
        connection.process_data_events(30)
    connection.process_data_events(0.05)
    check([body for _, body in waiting] == [str(n).encode() for n in range(i, i + 10)], waiting)
    last, waiting = waiting[-1][0], []
    channel.basic_ack(last.delivery_tag, multiple=True)
channel.basic_cancel(tag)
done("prefetch")

publish(channel, name("x"), "k", "again")
method, _, body = receive(channel, name("q"))
check(not method.redelivered and body == b"again", method, body)
channel.basic_nack(method.delivery_tag, requeue=True)
method, _, body = receive(channel, name("q"))
check(method.redelivered and body == b"again", method, body)
channel.basic_ack(method.delivery_tag)
channel.cancel()
done("requeue")

channel.queue_declare(name("dead"), durable=True)
channel.queue_declare(name("ttl"), durable=True, arguments={
    "x-message-ttl": 200, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": name("dead")})
publish(channel, "", name("ttl"), "mortal")
method, properties, body = receive(channel, name("dead"))
death = properties.headers["x-death"][0]
check(body == b"mortal" and death["reason"] == "expired" and death["queue"] == name("ttl"), body, death)
channel.basic_ack(method.delivery_tag)
channel.cancel()
done("expiry")

cancelled = []
channel.queue_declare(name("gone"), durable=True)
channel.add_on_cancel_callback(cancelled.append)
channel.basic_consume(name("gone"), lambda *_: None)
connection.channel().queue_delete(name("gone"))
while not cancelled:
    connection.process_data_events(30)
done("cancel")

silent = connect(addresses[1], heartbeat=2)
held = silent.channel()
publish(channel, name("x"), "k", "held")
receive(held, name("q"))
ask("freeze")
try:
    while True:
        silent.process_data_events(30)
except pika.exceptions.AMQPError:
    pass
method, _, body = receive(channel, name("q"))
check(method.redelivered and body == b"held", method, body)
channel.basic_ack(method.delivery_tag)
channel.cancel()
done("silence")

publish(channel, name("x"), "k", "before")
ask("kill")
try:
    while True:
        connection.process_data_events(30)
except pika.exceptions.AMQPError:
    pass
connection = reconnect()
channel = connection.channel()
channel.confirm_delivery()
publish(channel, name("x"), "k", "after")
for want in (b"before", b"after"):
    method, _, body = receive(channel, name("q"))
    check(body == want, body)
    channel.basic_ack(method.delivery_tag)
connection.close()
done("reconnect")
