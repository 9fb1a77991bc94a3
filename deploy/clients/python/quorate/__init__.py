"""Calls for what quorate can do beyond AMQP, over pika.

Locks that are renewed while a message is worked on, retries at a time, deferred messages, schedules, sessions and
pauses::

    with Client(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/")) as client:
        client.call("queue_declare", "work", durable=True)
        with client.consume("work", arguments={"x-lock-duration": 30000}) as consumer:
            for message in consumer:
                with message.hold() as hold:  # renews the lock in the background
                    handle(message.body, hold)
                    message.ack()

A client has a connection and a channel of its own, which a thread of its own serves: heartbeats are sent and locks
renewed while a program works on a message. Its methods may be called from any thread, and take at most as long as
its timeout. When the connection is lost the client is over, and calls raise :class:`Closed`; the program makes
another one. Nothing is sent twice but the renewal of a lock, which is harmless.

All durations are seconds.
"""
from ._client import Client, Consumer, Message
from ._errors import Closed, LockLost, QuorateError, Refused, SessionEnded, UnknownOutcome
from ._hold import Hold
from ._session import Group, Session

__version__ = "0.1.0"

__all__ = [
    "Client", "Closed", "Consumer", "Group", "Hold", "LockLost", "Message", "QuorateError", "Refused", "Session",
    "SessionEnded", "UnknownOutcome",
]
