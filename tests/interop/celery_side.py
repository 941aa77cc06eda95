"""The Celery side of `redis_results.py`; runs under a Python that has Celery, and knows no Umbel.

Reads one JSON object per line (``do`` and arguments), answers each with one JSON object.
"""

import json
import sys

from celery import Celery, states

app = Celery("proj", broker="memory://", backend=sys.argv[1])


@app.task(name="proj.add", bind=True)
def add(self, a, b):
    return a + b


def store(task_id, state, value, extended=False):
    app.conf.result_extended = extended
    if state in states.EXCEPTION_STATES:
        value = ValueError(*value)
    traceback = "Traceback (most recent call last):\n  …" if state == "FAILURE" else None
    request = None
    if extended:
        from celery.app.task import Context

        request = Context(
            id=task_id,
            task="proj.add",
            args=[1, 2],
            kwargs={"c": "é"},
            hostname="celery@host",
            retries=1,
            delivery_info={"routing_key": "celery"},
            parent_id="p",
            group="g",
        )
    app.backend.store_result(task_id, value, state, traceback, request=request)
    return


def get(task_id, timeout=20):
    result = app.AsyncResult(task_id)
    try:
        value = result.get(timeout=timeout)
    except Exception as error:
        module = type(error).__module__
        return {
            "state": result.state,
            "raised": [module, type(error).__name__, *map(str, error.args)],
        }
    return {"state": result.state, "value": value}


def state(task_id):
    return app.AsyncResult(task_id).state


def meta(task_id):
    return app.backend.get_task_meta(task_id)["result"]


def forget(task_id):
    app.AsyncResult(task_id).forget()


for line in sys.stdin:
    request = json.loads(line)
    answer = globals()[request.pop("do")](**request)
    print(json.dumps(answer, default=repr), flush=True)
