"""Consumes as Celery does: basic.qos with global = true, by kombu on py-amqp.

Queues: durable quorum queues, durable ones of the default type, and ones of one
node that are neither durable nor shared.
"""
import sys

import kombu
from kombu.common import QoS

connection = kombu.Connection("amqp://guest:guest@%s//" % sys.argv[1], heartbeat=60)
prefix = sys.argv[2]
kinds = {
    "quorum": dict(durable=True, queue_arguments={"x-queue-type": "quorum"}),
    "default": dict(durable=True),
    "local": dict(durable=False, exclusive=True, auto_delete=True),
}


def check(holds, *what):
    if not holds:
        raise SystemExit("check failed: %r" % (what,))


def arrive(inbox, number):
    """Waits for a number of messages, and checks that no more come for a while."""
    while len(inbox) < number:
        connection.drain_events(timeout=30)
    try:
        while True:
            connection.drain_events(timeout=0.3)
    except TimeoutError:
        pass
    check(len(inbox) == number, number, [m.payload for m in inbox])


def consume(kind, options):
    channel = connection.channel()
    queues = [kombu.Queue("%s.%s.%d" % (prefix, kind, i), **options)(channel) for i in range(3)]
    for q in queues:
        q.declare()
        for i in range(10):
            kombu.Producer(channel).publish("%d" % i, exchange="", routing_key=q.name)
    inbox = []
    consumer = kombu.Consumer(channel, queues, on_message=inbox.append)
    # Celery's own object for its prefetch count, as celery.worker.consumer.tasks makes it.
    qos = QoS(lambda prefetch_count: consumer.qos(prefetch_count=prefetch_count, apply_global=True), 4)
    qos.update()
    consumer.consume()
    arrive(inbox, 4)  # of three queues together
    qos.increment_eventually(2)
    qos.update()
    arrive(inbox, 6)
    qos.decrement_eventually(3)
    qos.update()
    for n in range(3):
        inbox.pop(0).ack()
    arrive(inbox, 3)
    taken = 3
    while taken < 30:  # one by one, as a worker with late acknowledgements does
        while not inbox:
            connection.drain_events(timeout=30)
        check(len(inbox) <= 3, [m.payload for m in inbox])
        inbox.pop(0).ack()
        taken += 1
    check(all(q.queue_declare(passive=True).message_count == 0 for q in queues), kind)
    consumer.cancel()
    for q in queues:
        q.delete()
    channel.close()


for kind, options in kinds.items():
    consume(kind, options)
connection.close()
print("ok")
