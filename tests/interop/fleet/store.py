"""Stores a result of each kind, as a worker of Celery does: ``store.py URL``. See `record.py`."""

import sys

from celery import Celery
from celery.app.task import Context

app = Celery("proj", broker="memory://", backend=sys.argv[1])


@app.task(name="proj.add", bind=True)
def add(self, a, b):
    return a + b


REQUEST = Context(
    id="extended",
    task="proj.add",
    args=[1, 2],
    kwargs={"c": "é"},
    hostname="celery@host",
    retries=1,
    delivery_info={"routing_key": "celery"},
    parent_id="p",
    group="g",
)
store = app.backend.store_result
store("success", {"n": [1, None, "é"]}, "SUCCESS")
store("failure", ValueError("no", 7), "FAILURE", "Traceback (most recent call last):\n  …")
store("started", {"pid": 7, "hostname": "celery@host"}, "STARTED")
app.conf.result_extended = True
store("extended", "e", "SUCCESS", request=REQUEST)
