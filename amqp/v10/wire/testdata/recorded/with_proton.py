"""A message of each kind to the queue seed, and back."""
import os

from proton import Delivery, Message, symbol, ulong
from proton.utils import BlockingConnection

c = BlockingConnection("amqp://%s:%s" % (os.environ["HOST"], os.environ["PORT"]), user="guest", password="guest", allowed_mechs="PLAIN", timeout=20)
sender = c.create_sender("/queues/seed")
sender.send(Message(body=b"data", inferred=True, id=ulong(7), properties={"n": -1, "s": "s"}))
sender.send(Message(body={"k": [1, True, None]}, durable=True, priority=5, ttl=100, annotations={symbol("x-k"): "v"}))
sender.send(Message(body=["a", 1], inferred=True, subject="s", correlation_id="c", creation_time=1, group_id="g"))
receiver = c.create_receiver("/queues/seed", credit=3)
for outcome in (Delivery.ACCEPTED, Delivery.REJECTED, Delivery.MODIFIED):
    receiver.receive(timeout=20)
    receiver.settle(outcome)
receiver.close()
c.close()
