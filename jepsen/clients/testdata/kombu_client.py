"""The steps of the client test with kombu on py-amqp."""
import sys
import time

import amqp
import kombu

addresses, prefix = sys.argv[1].split(","), sys.argv[2]


def connect(address, heartbeat=60):
    connection = kombu.Connection(
        "amqp://guest:guest@%s//" % address, heartbeat=heartbeat, transport_options={"confirm_publish": True})
    connection.connect()
    return connection


def reconnect():
    for attempt in range(300):
        try:
            return connect(addresses[attempt % len(addresses)])
        except (OSError, amqp.AMQPError):
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


def publish(channel, body, exchange, key):
    kombu.Producer(channel).publish(
        body, exchange=exchange, routing_key=key, mandatory=True, delivery_mode=2, content_type="text/plain")


class Inbox:
    def __init__(self, channel, queue, prefetch=1):
        self.messages = []
        channel.basic_qos(0, prefetch, False)
        self.consumer = kombu.Consumer(channel, [queue], on_message=self.messages.append)
        self.connection = channel.connection.client
        self.consumer.consume()

    def receive(self):
        while not self.messages:
            self.connection.drain_events(timeout=30)
        return self.messages.pop(0)

    def close(self):
        self.consumer.cancel()


def drain_until_lost(connection):
    try:
        while True:
            connection.drain_events(timeout=30)
    except (OSError, amqp.AMQPError) as e:
        check(not isinstance(e, TimeoutError), e)


connection = connect(addresses[2])
channel = connection.channel()
exchange = kombu.Exchange(name("x"), "direct")
queue = kombu.Queue(name("q"), exchange, "k", queue_arguments={"x-queue-type": "quorum"})(channel)
queue.declare()
done("declare")

for i in range(100):
    publish(channel, str(i), name("x"), "k")  # returns when it is confirmed
done("confirms")

inbox = Inbox(channel, queue, 10)
for i in range(0, 100, 10):
    while len(inbox.messages) < 10:
        connection.drain_events(timeout=30)
    try:
        connection.drain_events(timeout=0.05)
    except TimeoutError:
        pass
    check([int(m.payload) for m in inbox.messages] == list(range(i, i + 10)), inbox.messages)
    last = inbox.messages[-1]
    inbox.messages.clear()
    last.ack(multiple=True)
inbox.close()
done("prefetch")

publish(channel, "again", name("x"), "k")
inbox = Inbox(channel, queue)
message = inbox.receive()
check(not message.delivery_info["redelivered"] and message.payload == "again", message)
message.requeue()
message = inbox.receive()
check(message.delivery_info["redelivered"] and message.payload == "again", message)
message.ack()
inbox.close()
done("requeue")

dead = kombu.Queue(name("dead"))(channel)
dead.declare()
kombu.Queue(name("ttl"), message_ttl=0.2, queue_arguments={
    "x-dead-letter-exchange": "", "x-dead-letter-routing-key": name("dead")})(channel).declare()
publish(channel, "mortal", "", name("ttl"))
inbox = Inbox(channel, dead)
message = inbox.receive()
death = message.headers["x-death"][0]
check(message.payload == "mortal" and death["reason"] == "expired" and death["queue"] == name("ttl"), death)
message.ack()
inbox.close()
done("expiry")

gone = kombu.Queue(name("gone"))(channel)
gone.declare()
inbox = Inbox(channel, gone)
try:
    connection.channel().queue_delete(name("gone"))  # the notice may come before the answer
    inbox.receive()
    raise SystemExit("not cancelled")
except amqp.ConsumerCancelled:
    pass
done("cancel")

silent = connect(addresses[1], heartbeat=2)
publish(channel, "held", name("x"), "k")
Inbox(silent.channel(), queue).receive()
ask("freeze")
drain_until_lost(silent)
inbox = Inbox(channel, queue)
message = inbox.receive()
check(message.delivery_info["redelivered"] and message.payload == "held", message)
message.ack()
inbox.close()
done("silence")

publish(channel, "before", name("x"), "k")
ask("kill")
drain_until_lost(connection)
connection = reconnect()
channel = connection.channel()
publish(channel, "after", name("x"), "k")
inbox = Inbox(channel, queue)
for want in ("before", "after"):
    message = inbox.receive()
    check(message.payload == want, message.payload)
    message.ack()
connection.close()
done("reconnect")
