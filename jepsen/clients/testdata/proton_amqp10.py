"""Scenarios of AMQP 1.0 with qpid-proton. It is told host, port, and the beginning of the names of
queues, one for each scenario, and prints "ok SCENARIO" or "failed SCENARIO REASON"."""
import concurrent.futures
import sys
import time
import uuid

from proton import ConnectionException, Data, Delivery, Link, Message, ProtonException, int32, symbol, timestamp, ubyte, uint, ulong
from proton.reactor import AtLeastOnce, AtMostOnce, LinkOption
from proton.utils import BlockingConnection, LinkDetached, SendException

host, port, prefix = (sys.argv[1:] + [""] * 3)[:3]
LIMIT = 30
scenarios = {}


def scenario(run):
    scenarios[run.__name__.replace("_", " ").strip()] = run
    return run


def connect(**more):
    options = dict(timeout=LIMIT, user="guest", password="guest", allowed_mechs="PLAIN")
    options.update(more)
    return BlockingConnection("amqp://%s:%s" % (host, port), **options)


def get(receiver, outcome=Delivery.ACCEPTED):
    m = receiver.receive(timeout=LIMIT)
    if outcome is not None and receiver.fetcher.unsettled:
        receiver.settle(outcome)
    return m


def equal(have, want):
    assert have == want, "%r, not %r" % (have, want)


def trip(queue, message):
    c = connect()
    equal(c.create_sender(queue).send(message).remote_state, Delivery.ACCEPTED)
    m = get(c.create_receiver(queue, credit=1))
    c.close()
    return m


def fails(error, call):
    try:
        call()
    except error as e:
        return e
    raise AssertionError("no %s" % error)


@scenario
def send(queue):
    equal(trip(queue, Message(body="text")).body, "text")


@scenario
def many(queue):
    c = connect()
    s = c.create_sender(queue)
    for n in range(200):
        s.send(Message(body=n))
    r = c.create_receiver(queue, credit=50)
    equal([get(r).body for _ in range(200)], list(range(200)))


@scenario
def presettled(queue):
    c = connect()
    s = c.create_sender(queue, options=AtMostOnce())
    s.send(Message(body="a"))
    equal(get(c.create_receiver(queue, credit=1)).body, "a")


@scenario
def settled_receiver(queue):
    c = connect()
    c.create_sender(queue).send(Message(body="a"))
    r = c.create_receiver(queue, credit=1, options=AtMostOnce())
    equal(r.receive(timeout=LIMIT).body, "a")


@scenario
def at_least_once(queue):
    c = connect()
    equal(c.create_sender(queue, options=AtLeastOnce()).send(Message(body="a")).remote_state, Delivery.ACCEPTED)
    equal(get(c.create_receiver(queue, credit=1, options=AtLeastOnce())).body, "a")


@scenario
def release(queue):
    c = connect()
    c.create_sender(queue).send(Message(body="a"))
    r = c.create_receiver(queue, credit=1)
    equal(get(r, None).body, "a")
    r.release(delivered=False)
    m = get(r)
    equal((m.body, m.delivery_count, m.first_acquirer), ("a", 0, False))


@scenario
def modify(queue):
    c = connect()
    c.create_sender(queue).send(Message(body="a"))
    r = c.create_receiver(queue, credit=1)
    for count in range(3):
        equal(get(r, None).delivery_count, count)
        d = r.fetcher.unsettled[0]
        d.local.failed = True
        r.settle(Delivery.MODIFIED)
    equal(get(r).delivery_count, 3)


@scenario
def reject(queue):
    c = connect()
    s = c.create_sender(queue)
    s.send(Message(body="a"))
    r = c.create_receiver(queue, credit=1)
    get(r, None)
    r.reject()
    s.send(Message(body="b"))
    equal(get(r).body, "b")


@scenario
def unroutable(_):
    e = fails(SendException, lambda: connect().create_sender("/exchanges/amq.direct/nowhere").send(Message(body="a")))
    equal(e.state, Delivery.RELEASED)


@scenario
def anonymous(queue):
    c = connect()
    s = c.create_sender(None)
    equal(s.send(Message(address=queue, body="a")).remote_state, Delivery.ACCEPTED)
    equal(fails(SendException, lambda: s.send(Message(body="a"))).state, Delivery.REJECTED)
    equal(get(c.create_receiver(queue, credit=1)).body, "a")


@scenario
def missing_queue(_):
    for create in ("create_sender", "create_receiver"):
        e = fails(LinkDetached, lambda: getattr(connect(), create)("/queues/nope"))
        equal(e.condition, "amqp:not-found")


@scenario
def large(queue):
    body = "x" * (1 << 20)
    assert trip(queue, Message(body=body)).body == body


@scenario
def small_frames(queue):
    c = connect(max_frame_size=1024)
    c.create_sender(queue).send(Message(body="y" * 20000))
    equal(get(c.create_receiver(queue, credit=1)).body, "y" * 20000)


@scenario
def binary(queue):
    m = trip(queue, Message(body=b"\x00\x01\xff", inferred=True))
    equal((bytes(m.body), m.inferred), (b"\x00\x01\xff", True))


@scenario
def values(queue):
    c = connect()
    s, r = c.create_sender(queue), c.create_receiver(queue, credit=1)
    for body in (True, "ü", 7, -7, 1.5, uint(4000000000), ulong(1 << 60), ubyte(200), int32(-5), timestamp(1700000000000), symbol("sym"), uuid.UUID(int=5),
                 ["a", 1, None], {"a": 1, "b": {"c": ["d"]}}, b"\x00"):
        s.send(Message(body=body))
        have = get(r).body
        equal((type(have), have) if body != b"\x00" else bytes(have), (type(body), body) if body != b"\x00" else body)


@scenario
def sequence(queue):
    m = trip(queue, Message(body=["a", "b"], inferred=True))
    equal((m.body, m.inferred), (["a", "b"], True))


@scenario
def properties(queue):
    p = dict(id="id", user_id=b"guest", address="to", subject="subject", reply_to="/queues/back", correlation_id=ulong(7), content_type=symbol("text/plain"),
             content_encoding=symbol("gzip"), group_id="group", group_sequence=7, reply_to_group_id="back", creation_time=1700000000.0, expiry_time=4000000000.0)
    m = trip(queue, Message(body="a", **p))
    for name, want in p.items():
        equal((name, getattr(m, name)), (name, want))


@scenario
def application_properties(queue):
    p = {"text": "ü", "yes": True, "long": 7, "double": 1.5, "none": None, "binary": b"\x00", "uint": uint(9)}
    have = trip(queue, Message(body="a", properties=p)).properties
    equal(have, p)


@scenario
def annotations(queue):
    m = trip(queue, Message(body="a", annotations={symbol("x-own"): "kept"}, instructions={symbol("x-hop"): "gone"}))
    equal((m.annotations["x-own"], m.annotations["x-exchange"]), ("kept", ""))
    assert not m.instructions, m.instructions


@scenario
def header(queue):
    m = trip(queue, Message(body="a", durable=True, priority=7, ttl=100))
    equal((m.durable, m.priority, m.ttl, m.first_acquirer), (True, 7, 100.0, True))


@scenario
def ttl(queue):
    c = connect()
    s = c.create_sender(queue)
    s.send(Message(body="expires", ttl=0.001))
    time.sleep(0.1)
    s.send(Message(body="stays"))
    equal(get(c.create_receiver(queue, credit=1)).body, "stays")


@scenario
def detach_and_attach(queue):
    c = connect()
    for n in range(3):
        s = c.create_sender(queue, name="again")
        s.send(Message(body=n))
        s.close()
    r = c.create_receiver(queue, credit=3)
    equal([get(r).body for _ in range(3)], [0, 1, 2])


@scenario
def unsettled_at_close(queue):
    c = connect()
    c.create_sender(queue).send(Message(body="a"))
    get(c.create_receiver(queue, credit=1), None)
    c.close()
    equal(get(connect().create_receiver(queue, credit=1)).body, "a")


class Temporary(LinkOption):
    """A node that the broker makes."""

    def apply(self, link):
        capabilities = link.source.capabilities
        capabilities.put_array(False, Data.SYMBOL)
        capabilities.enter()
        capabilities.put_symbol("temporary-queue")
        capabilities.exit()

    def test(self, link):
        return link.is_receiver


@scenario
def request_and_reply(queue):
    c = connect()
    answers = c.create_receiver(None, credit=1, dynamic=True, options=Temporary())
    requests, s = c.create_receiver(queue, credit=1), c.create_sender(None)
    s.send(Message(address=queue, reply_to=answers.link.remote_source.address, correlation_id="7", body="question"))
    m = get(requests)
    s.send(Message(address=m.reply_to, correlation_id=m.correlation_id, body="answer"))
    m = get(answers)
    equal((m.body, m.correlation_id), ("answer", "7"))


class Paired(LinkOption):
    """Half of the pair of management, without a body for what has none."""

    def __init__(self, source, target):
        self.source, self.target = source, target

    def apply(self, link):
        link.source.address, link.target.address = self.source, self.target
        link.snd_settle_mode = Link.SND_SETTLED
        link.properties = {symbol("paired"): True}


@scenario
def management(queue):
    c = connect()
    s = c.create_sender("/management", name="pair", options=Paired("client", "/management"))
    r = c.create_receiver("/management", name="pair", credit=10, options=Paired("/management", "client"))

    def ask(method, to, body=""):
        s.send(Message(id=method, subject=method, address=to, reply_to="$me", body=body))
        m = r.receive(timeout=LIMIT)
        equal(m.correlation_id, method)
        return m

    path = queue + "-declared"
    time.sleep(0.1)
    m = ask("PUT", path, {"durable": True, "arguments": {"x-queue-type": "quorum"}})
    equal(m.subject, "201")
    equal(m.body["type"], "quorum")
    equal(ask("PUT", path, {"durable": True, "arguments": {"x-queue-type": "quorum", "x-max-length": 3}}).subject, "409")


@scenario
def wrong_password(_):
    fails((ConnectionException, ProtonException), lambda: connect(password="wrong"))


@scenario
def heartbeat(queue):
    c = connect(heartbeat=4)  # it tells half of it
    s = c.create_sender(queue)
    until = time.time() + 5
    c.wait(lambda: time.time() > until, timeout=LIMIT)
    equal(s.send(Message(body="a")).remote_state, Delivery.ACCEPTED)


@scenario
def credit(queue):
    c = connect()
    s = c.create_sender(queue)
    for n in range(5):
        s.send(Message(body=n))
    r = c.create_receiver(queue, credit=3)
    equal([r.receive(timeout=LIMIT).body for _ in range(3)], [0, 1, 2])
    r.accept(), r.accept(), r.accept()
    r.link.flow(1)
    equal(get(r).body, 3)


def play(name):
    try:
        scenarios[name]("/queues/%s.%s" % (prefix, name.replace(" ", "-")))
        return "ok " + name
    except Exception as e:
        return "failed %s %s %s" % (name, type(e).__name__, str(e).replace("\n", " "))


if host == "list":
    print("\n".join(scenarios))
else:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for line in pool.map(play, scenarios):
            print(line, flush=True)
