"""A Celery application and, with arguments, those who give it work."""
import os
import sys
import time

from celery import Celery

app = Celery("quorate", broker=os.environ["BROKER"], backend="rpc://")
app.conf.update(
    broker_transport_options={"confirm_publish": True},
    task_default_queue=os.environ["QUEUE"], worker_send_task_events=True, task_send_sent_event=True,
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


def check(holds, *what):
    if not holds:
        raise SystemExit("check failed: %r" % (what,))


def work():
    sums = [add.delay(i, i) for i in range(20)]
    check([r.get(timeout=60) for r in sums] == [2 * i for i in range(20)])
    check(stubborn.delay().get(timeout=60) == 2)
    sent = time.time()
    ran = when.apply_async(countdown=1.5).get(timeout=60)
    check(ran >= sent + 1.5, sent, ran)
    answers = app.control.ping(timeout=20, limit=1)  # by the workers' mailboxes and a reply queue
    check(len(answers) == 1 and list(answers[0].values()) == [{"ok": "pong"}], answers)
    active = app.control.inspect(timeout=20, limit=1).registered()
    check(active and "celery_app.add" in list(active.values())[0], active)
    print("ok")


if __name__ == "__main__" and sys.argv[1:] == ["work"]:
    import celery_app  # by the name that the worker knows its tasks under

    celery_app.work()
