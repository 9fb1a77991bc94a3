"""The client package for Python: takes the steps that packages_test.go describes."""
import os
import sys
import time
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import pika
import quorate

LOCK = 12  # seconds that the lock lasts that is held while the leader is killed

addresses, prefix = sys.argv[1].split(","), sys.argv[2]


def connect(address, **kwargs):
    host, port = address.split(":")
    client = quorate.Client(pika.ConnectionParameters(host, int(port)), **kwargs)
    client.call("basic_qos", prefetch_count=10)
    return client


def check(holds, *what):
    if not holds:
        raise AssertionError(what)


def ask(what):
    print(what, flush=True)
    sys.stdin.readline()


@contextmanager
def refused(verb, code, text):
    try:
        yield
    except quorate.Refused as e:
        check(e.verb == verb and e.code == code and text in e.text, e)
    else:
        raise AssertionError(f"{verb} was not refused")


@contextmanager
def raises(kind):
    try:
        yield
    except kind:
        return
    raise AssertionError(f"no {kind}")


def queue(name, *bodies, arguments=None):
    q = prefix + "." + name
    client.call("queue_declare", q, durable=True)
    for body in bodies:
        client.publish("", q, body)
    return q, client.consume(q, arguments=arguments)


def following(consumer, body):
    message = consumer.receive(30)
    check(message is not None and message.body == body, message and message.body, body)
    return message


def settled():
    _, consumer = queue("settled", b"a", b"b", b"c")
    a, b = following(consumer, b"a"), following(consumer, b"b")
    a.ack()
    with raises(quorate.LockLost):
        a.ack()
    with raises(quorate.LockLost), a.hold():
        pass
    with raises(ValueError), b.hold():
        pass
    b.requeue()
    c = following(consumer, b"c")
    following(consumer, b"b").reject()
    c.dead_letter("wrong", "without an amount")
    with client.consume(prefix + ".settled") as another:
        check(another.receive(0) is None, "nothing")


def refusals():
    q, consumer = queue("refused", b"a", arguments={"x-lock-duration": 30000})
    a = following(consumer, b"a")
    with refused("lock.renew", 406, "x-lock-duration"):
        a.renew(0.001)
    with refused("message.defer", 406, "requires x-deferral-token"):
        a.defer("")
    with refused("message.retry", 406, "requires either x-delay"):
        a.retry()
    with refused("schedule.cancel", 404, "nothing"):
        client.cancel("nothing", queue=q)
    with refused("queue.pause", 404, "nowhere"):
        client.pause("nowhere")
    with refused("queue.pause", 406, "x-reason"):
        client.pause(q, "x" * 256)
    with refused("message.receive-deferred", 406, "x-deferral-tokens"):
        client.receive_deferred(consumer, [])
    with raises(quorate.LockLost):
        client.message("no token").ack()
    with raises(quorate.Refused):
        client.group(consumer, "g").state()
    with raises(ValueError):
        client.cancel("nothing", queue=q, exchange="x")
    with raises(quorate.Refused):
        client.publish("", "nowhere", b"")
    a.ack()


def retried():
    _, consumer = queue("retried", b"a")
    following(consumer, b"a").retry(delay=0.05)
    following(consumer, b"a").retry(at=datetime.now(timezone.utc), failed=False)
    following(consumer, b"a").ack()


def deferred():
    q, consumer = queue("deferred", b"a", b"b")
    a, b = following(consumer, b"a"), following(consumer, b"b")
    a.defer("token")
    with refused("message.defer", 405, "RESOURCE_LOCKED"):
        b.defer("token")
    with refused("message.receive-deferred", 404, "another"):
        client.receive_deferred(consumer, "another")
    client.receive_deferred(consumer, "token")
    following(consumer, b"a").ack()
    b.defer("token", delay=0.05)
    following(consumer, b"b").ack()


def scheduled():
    q, consumer = queue("scheduled")
    for name in ("a", "b", "c"):
        client.schedule("", q, name.encode(), delay=3600, schedule_id=name)
    with refused("publish", 0, "nacked"):
        client.schedule("", q, b"a", delay=3600, schedule_id="a", conflict="reject")
    client.cancel("a", queue=q)
    with refused("schedule.cancel", 404, "'a'"):
        client.cancel("a", queue=q)
    client.reschedule("b", queue=q, delay=0.05)
    following(consumer, b"b").ack()
    client.fire("c", queue=q)
    following(consumer, b"c").ack()
    client.schedule("", q, b"d", at=datetime.now(timezone.utc) + timedelta(milliseconds=50))
    following(consumer, b"d").ack()
    exchange = prefix + ".delayed"
    client.call("exchange_declare", exchange, "fanout", durable=True, arguments={"x-delayed-exchange": True})
    client.call("queue_bind", q, exchange)
    client.publish(exchange, "", b"e", pika.BasicProperties(headers={"x-delay": 3600000, "x-schedule-id": "e"}))
    client.cancel("e", exchange=exchange)
    with refused("schedule.cancel", 404, "'e'"):
        client.cancel("e", exchange=exchange)
    with refused("publish", 312, "NO_ROUTE"):
        client.schedule("", "nowhere", b"", delay=3600)


def paused():
    q, consumer = queue("paused")
    client.pause(q, "the bank is down")
    client.publish("", q, b"a")
    with refused("message.receive-deferred", 405, "paused"):
        client.receive_deferred(consumer, "token")
    client.resume(q)
    following(consumer, b"a").ack()
    began = time.monotonic()
    client.pause(q, duration=0.3)
    client.publish("", q, b"b")
    following(consumer, b"b").ack()
    check(time.monotonic() - began >= 0.3, "early")


def sessions():
    q = prefix + ".sessions"
    client.call("queue_declare", q, durable=True, arguments={"x-message-groups": True})

    def publish(group, body):
        client.publish("", q, body, pika.BasicProperties(headers={"x-group-id": group}))

    publish("x", b"1"), publish("y", b"1"), publish("x", b"2")
    with client.accept(q, arguments={"x-lock-duration": 30000}) as session:
        check(session.group_id == "x", session.group_id)
        with session.hold() as hold:
            session.set_state(b"half done")
            messages = iter(session)
            following(session, b"1").ack()
            check(next(messages).body == b"2", "it returns")
            hold.check()
    with client.accept(q, "x", arguments={"x-lock-duration": 30000}) as session:
        check(session.state() == b"half done", "the state")
        check(session.renew() > 20, "the lock of the group")
        following(session, b"2").ack()
    publish("z", b"1")
    with client.accept(q) as session:
        check(session.group_id == "y", session.group_id)
        for message in session:  # until it is given z
            message.ack()
    with client.accept(q, "z") as session:
        following(session, b"1").ack()
    publish(7, b"1")
    with client.consume(q, arguments={"x-lock-duration": 30000}) as consumer:
        following(consumer, b"1")
        group = client.group(consumer, "7")
        with group.hold():
            group.release()
        following(consumer, b"1").ack()
        with raises(quorate.LockLost):
            group.renew()
    with raises(TimeoutError):
        client.accept(q, "z", timeout=0.1)


def lost():
    _, consumer = queue("lost", b"a", b"b", b"c", arguments={"x-lock-duration": 3000, "x-delivery-info": True})
    a, b, c = following(consumer, b"a"), following(consumer, b"b"), following(consumer, b"c")
    with raises(quorate.LockLost), c.hold(12 * 3600) as hold:
        client.message(c.headers["x-lock-token"]).ack()
        with raises(quorate.LockLost):
            c.ack()
        check(hold.lost.is_set(), "c is lost")  # long before a renewal
    with b.hold(30) as other:
        with raises(quorate.LockLost), a.hold() as hold, connect(addresses[1]) as elsewhere:
            elsewhere.message(a.headers["x-lock-token"]).ack()
            check(hold.lost.wait(30), "lost")
            with raises(quorate.LockLost):
                a.ack()
        other.check()
        check(other.active, "b is held")
        b.ack()
        check(not other.active, "b is settled")
    check(not other.lost.is_set(), "b is not lost")


def closed():
    _, consumer = queue("closed", b"a", arguments={"x-lock-duration": 43200000})
    a = following(consumer, b"a")
    with raises(quorate.Closed), a.hold() as hold:
        with raises(quorate.Closed):
            client.call("queue_declare", "nowhere", passive=True)
        check(hold.lost.wait(30), "closed")
        with raises(quorate.Closed):
            a.ack()
    with raises(quorate.Closed):
        next(iter(consumer))
    with raises(quorate.Closed):
        connect("127.0.0.1:1")


def stalled():
    q, consumer = queue("stalled", b"a", arguments={"x-lock-duration": 3000})
    with raises(quorate.LockLost), following(consumer, b"a").hold() as hold:
        ask("stall")
        client.timeout = 0.2
        with raises(quorate.UnknownOutcome):
            client.resume(q)
        with raises(quorate.UnknownOutcome):
            client.schedule("", q, b"", delay=3600)
        check(hold.lost.wait(30), "lost")


def held():
    q, consumer = queue("held", b"a", arguments={"x-lock-duration": LOCK * 1000})
    ask("lead " + q)
    message = following(consumer, b"a")
    began = time.monotonic()
    with message.hold() as hold:
        ask("kill")
        check(not hold.lost.wait(began + LOCK + 1 - time.monotonic()), "lost")
        message.ack()


client = connect(addresses[0])
for step, name in ((settled, "settled"), (refusals, "refused"), (retried, "retried"), (deferred, "deferred"),
                   (scheduled, "scheduled"), (paused, "paused"), (sessions, "sessions"), (lost, "lost"), (closed, "closed")):
    step()
    print("ok", name, flush=True)
client.close()
client = connect(os.environ["QUORATE_SLOW"])
stalled()
print("ok stalled", flush=True)
client.close()
with connect(addresses[0]) as client:
    held()
    print("ok held", flush=True)
