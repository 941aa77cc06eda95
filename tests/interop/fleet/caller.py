"""A client of ``proj``: reads JSON objects, one per line (``do`` and arguments), and answers each.

Runs with Celery, or with Umbel in its place.
"""

import json
import sys
import time
from contextlib import suppress

import proj
from celery import chain, group
from celery.exceptions import TimeoutError
from celery.result import AsyncResult
from kombu import Exchange

app = proj.app


def signature(form):
    task, args, options = form
    return getattr(proj, task).signature(tuple(args), **options)


def options_of(options):
    for name in ("link", "link_error"):
        if name in options:
            options[name] = signature(options[name])
    return options


def send(task, args=(), kwargs=None, **options):
    return getattr(proj, task).apply_async(tuple(args), kwargs, **options_of(options)).id


def send_by_name(task, args=(), **options):
    return app.send_task(task, tuple(args), **options).id


def send_chain(steps, **options):
    """The ids of all steps, first to last."""
    result = chain(*map(signature, steps)).apply_async(**options_of(options))
    ids = []
    while result is not None:
        ids.insert(0, result.id)
        result = result.parent
    return ids


def send_group(parts):
    result = group(*map(signature, parts)).apply_async()
    return {"id": result.id, "parts": [each.id for each in result.results]}


def send_chord(parts, body):
    return (group(*map(signature, parts)) | signature(body)).apply_async().id


def value_of(result, timeout=30):
    if proj.WHO == "umbel":
        return result.get(timeout=timeout)
    # Celery can miss a result of what it hasn't sent itself: it may ask before the server has its
    # subscription, and be told of nothing that comes in between.
    while timeout > 3 and not result.ready():
        with suppress(TimeoutError):
            return result.get(timeout=3)
        timeout -= 3
    return result.get(timeout=timeout)


def get(id):
    result = AsyncResult(id, app=app)
    try:
        return {"value": value_of(result), "state": result.state}
    except Exception as error:
        kind = type(error)
        code = getattr(error, "code", None)
        return {
            "raised": [kind.__module__, kind.__qualname__, *map(str, error.args)],
            "is_ours": kind in vars(proj).values(),
            "code": code,
            "state": result.state,
            "traceback": result.traceback,
        }


def states(ids, timeout=60):
    """Of all of them, once they have ended."""
    results = [AsyncResult(id, app=app) for id in ids]
    ended = time.monotonic() + timeout
    while not all(result.ready() for result in results) and time.monotonic() < ended:
        time.sleep(0.05)
    return {result.id: result.state for result in results}


def about(id):
    result = AsyncResult(id, app=app)
    return {
        "state": result.state,
        "info": repr(result.info),
        "children": [child.id for child in result.children or ()],
        "name": result.name,
        "args": list(result.args or ()),
        "kwargs": result.kwargs,
        "worker": result.worker,
        "retries": result.retries,
        "queue": result.queue,
        "is_done": result.date_done is not None,
    }


def revoke(id, **options):
    app.control.revoke(id, **options)


def ping(**options):
    return app.control.ping(**options)


def revoked(node):
    return app.control.inspect([node], timeout=20.0).revoked()


def broadcast(task, exchange):
    """Celery takes an exchange that it doesn't declare for a direct one, and doesn't declare one
    of broadcasts."""
    declare = None if proj.WHO == "umbel" else [Exchange(exchange, type="fanout")]
    return getattr(proj, task).apply_async(queue=exchange, declare=declare).id


def fail_late(id):
    """What a worker would store that comes too late."""
    app.backend.mark_as_failure(id, proj.Plain("late"))


def forget(id):
    AsyncResult(id, app=app).forget()


for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = {"ok": globals()[request.pop("do")](**request)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer, default=repr), flush=True)
