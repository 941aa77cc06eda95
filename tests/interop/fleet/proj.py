"""The application of both fleets: written for Celery, and run by Celery and by Umbel unchanged.

Each execution notes a line of JSON in the file that ``PROJ_JOURNAL`` names.
"""

import json
import os
import sys
import time

import celery
from celery import Celery
from kombu import Exchange, Queue
from kombu.common import Broadcast

WHO = "umbel" if "umbel" in sys.modules else f"celery-{celery.__version__[:3]}"
QUEUES = ("umbel", "celery-5.6", "celery-5.7")
SHOP = Exchange("shop", type="topic")
KEYS = {"umbel": "order.#", "celery-5.6": "order.paid", "celery-5.7": "order.*"}
"""What each fleet's queue gets of the topic exchange ``shop``."""

app = Celery("proj", broker=os.environ["PROJ_BROKER"], backend=os.environ["PROJ_RESULTS"])
app.conf.update(
    task_default_queue="umbel",
    task_queues=[
        *(Queue(name, Exchange(name), routing_key=name) for name in QUEUES),
        *(Queue(f"shop-{name}", SHOP, routing_key=key) for name, key in KEYS.items()),
        Queue("news", Exchange("news", type="fanout")),
        Broadcast("calls"),
    ],
    accept_content=["json", "pickle", "msgpack", "yaml"],
    result_extended=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options=json.loads(os.environ.get("PROJ_TRANSPORT", "{}")),
    worker_prefetch_multiplier=int(os.environ.get("PROJ_PREFETCH", "1")),
    worker_send_task_events=False,
    beat_schedule={"tick": {"task": "proj.ran", "schedule": 0.2, "args": ["tick"]}},
)


class Refused(Exception):
    """With what its constructor doesn't take back."""

    def __init__(self, reason, *, code):
        super().__init__(reason, code)
        self.code = code


class Plain(Exception):
    pass


ERRORS = {
    "ValueError": ValueError("é", 2),
    "KeyError": KeyError("k"),
    "Plain": Plain("p", [1]),
    "Refused": Refused("no", code=7),
}
SEEN = (
    "id", "task", "args", "kwargs", "retries", "eta", "expires", "root_id", "parent_id", "group",
    "group_index", "chord", "chain", "callbacks", "errbacks", "correlation_id", "timelimit",
    "ignore_result", "shadow", "argsrepr", "kwargsrepr", "stamps", "replaced_task_nesting",
)  # fmt: skip


def note(request, what, tag=None):
    line = {"what": what, "tag": tag, "who": WHO, "id": request.id, "at": time.time()}
    line.update(retries=request.retries, worker=request.hostname)
    with open(os.environ["PROJ_JOURNAL"], "ab", buffering=0) as journal:
        journal.write(json.dumps(line).encode() + b"\n")


def of(request):
    seen = {name: getattr(request, name, None) for name in SEEN}
    headers = request.headers or {}
    seen["custom"] = {name: headers[name] for name in headers if name.startswith("x-")}
    seen["info"] = dict(request.delivery_info or {})
    return seen


@app.task(bind=True)
def add(self, a, b=0):
    note(self.request, "add")
    return a + b


@app.task(bind=True)
def see(self, *args, **kwargs):
    """All that it was sent with."""
    note(self.request, "see")
    return {"who": WHO, **of(self.request)}


@app.task(bind=True)
def ran(self, *args):
    note(self.request, "ran", args[-1] if args else None)


@app.task(bind=True, max_retries=5)
def flaky(self, times, queues=(), countdown=None):
    """Fails so many times; its retries go to each of these queues in turn."""
    note(self.request, "flaky")
    if countdown is None:
        # A retry that another worker ends before Celery has stored RETRY stays a RETRY for ever.
        countdown = 0.3 if queues else 0.05
    tried = self.request.retries
    if tried < times:
        options = {"queue": queues[tried % len(queues)]} if queues else {}
        raise self.retry(exc=Plain(f"try {tried}"), countdown=countdown, **options)
    return {"who": WHO, **of(self.request)}


@app.task(bind=True, max_retries=1)
def hopeless(self):
    note(self.request, "hopeless")
    raise self.retry(exc=Plain("never"), countdown=0.05)


@app.task(bind=True)
def fail(self, kind):
    note(self.request, "fail")
    raise ERRORS[kind]


@app.task(bind=True)
def progress(self, gate):
    """Tells how far it is, and goes on when `gate` is there."""
    self.update_state(state="PROGRESS", meta={"done": 1, "of": 2})
    while not os.path.exists(gate):
        time.sleep(0.01)
    return 2


@app.task(bind=True)
def heard(self, failed_id):
    """An error callback: knows who failed."""
    note(self.request, "heard", failed_id)


@app.task(bind=True)
def parent(self, queue):
    children = [add.apply_async((n, 1), queue=queue) for n in range(2)]
    return [child.id for child in children]


@app.task(bind=True)
def gated(self, gate, tag=None):
    note(self.request, "gated", tag)
    while not os.path.exists(gate):
        time.sleep(0.01)


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def late(self, tag, gate=None):
    """Acknowledged when it has ended, which it may not before `gate` is there."""
    note(self.request, "start", tag)
    while gate is not None and not os.path.exists(gate):
        time.sleep(0.01)
    note(self.request, "end", tag)
