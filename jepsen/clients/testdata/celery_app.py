"""A Celery application and, with arguments, those who give it work."""
import os
import signal
import sys
import time
from datetime import datetime, timezone

from celery import Celery, group
from celery.exceptions import TaskRevokedError
from kombu import Exchange, Queue

app = Celery("quorate", broker=os.environ["BROKER"], backend="rpc://")
work_queue = os.environ["QUEUE"]
urgent = Queue(work_queue + ".urgent", Exchange(work_queue + ".urgent"), work_queue + ".urgent", queue_arguments={"x-max-priority": 10})
later = Queue(work_queue + ".later", Exchange(work_queue + ".later"), work_queue + ".later", queue_arguments={"x-queue-type": "quorum"})
risky = Queue(work_queue + ".risky", Exchange(work_queue + ".risky"), work_queue + ".risky", queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": 5})
app.conf.update(
    task_queues=[Queue(work_queue, Exchange(work_queue), work_queue), urgent, risky, later],
    task_reject_on_worker_lost=True, worker_prefetch_multiplier=1,
    broker_transport_options={"confirm_publish": True},
    task_default_queue=work_queue, worker_send_task_events=True, task_send_sent_event=True,
    broker_connection_retry_on_startup=True, result_expires=60)


@app.task(acks_late=True)
def add(a, b):
    return a + b


@app.task(bind=True, max_retries=3)
def stubborn(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task
def when():
    return time.time()


begun = []  # of the process that does the urgent tasks


@app.task(acks_late=True)
def hurry(priority):
    begun.append(priority)


@app.task
def order():
    return begun


@app.task(bind=True, acks_late=True)
def dies(self):
    if not self.request.delivery_info["redelivered"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return "lived"


@app.task(bind=True, acks_late=True, ignore_result=True)
def note(self, n, eta):
    """Writes that it was done, how late, and whether for the first time, in one piece: other workers write there, too."""
    with open(os.environ["DONE"], "ab", buffering=0) as done:
        done.write(b"%d %f %s\n" % (n, time.time() - eta, b"again" if self.request.delivery_info["redelivered"] else b"first"))


def check(holds, *what):
    if not holds:
        raise SystemExit("check failed: %r" % (what,))


def before():
    """Gives work to nobody yet."""
    with app.connection() as connection:
        for queue in urgent, risky:
            queue(connection).declare()
    for i in range(20):
        hurry.apply_async((i % 10,), priority=i % 10, queue=urgent.name, ignore_result=True)
    print("ok")


def work():
    waits = time.time() + 60
    while len(order.delay().get(timeout=60)) < 20:
        check(time.time() < waits, order.delay().get(timeout=60))
    check(order.delay().get(timeout=60) == sorted(2 * list(range(10)), reverse=True), order.delay().get(timeout=60))
    check(dies.apply_async(queue=risky.name).get(timeout=60) == "lived")
    check(sum(group(add.s(i, i) for i in range(20))().get(timeout=60)) == 380)
    try:
        check(False, add.apply_async((1, 1), expires=-1).get(timeout=60))
    except TaskRevokedError:
        pass
    sums = [add.delay(i, i) for i in range(20)]
    check([r.get(timeout=60) for r in sums] == [2 * i for i in range(20)])
    check(stubborn.delay().get(timeout=60) == 2)
    sent = time.time()
    ran = when.apply_async(countdown=1.5).get(timeout=60)
    check(ran >= sent + 1.5, sent, ran)
    # By the workers' mailboxes and a reply queue. The limit ends the wait, it does not bound the answers: both workers answer.
    answers = app.control.ping(timeout=20, limit=2)
    check(sorted(answers, key=str) == [{"one@h": {"ok": "pong"}}, {"two@h": {"ok": "pong"}}], answers)
    active = app.control.inspect(timeout=20, limit=2).registered()
    check(sorted(active) == ["one@h", "two@h"] and all("celery_app.add" in tasks for tasks in active.values()), active)
    print("ok")


def eta(count):
    """Gives work for later to workers that wait: so many tasks, a tenth of which expires before it is due."""
    begin = time.time() + 20 + count / 100
    for n in range(count):
        at = begin + n / 500
        late = {"expires": datetime.fromtimestamp(at - 1, timezone.utc)} if n % 10 == 9 else {}
        note.apply_async((n, at), eta=datetime.fromtimestamp(at, timezone.utc), queue=later.name, **late)
    check(time.time() < begin, "publishing takes longer than the tasks wait")
    print("ok")


if __name__ == "__main__" and sys.argv[1:2] in (["before"], ["work"], ["eta"]):
    import celery_app  # by the name that the worker knows its tasks under

    getattr(celery_app, sys.argv[1])(*map(int, sys.argv[2:]))
