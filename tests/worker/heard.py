"""What is heard of a task, in order: as it must be here, and as a Celery 5.7 worker was heard.

An event is a signal's or a handler's name, and what tells its calls apart behind a colon. `FACTS`
were recorded from a prefork worker of Celery 5.7.0 with one process, with a receiver for every
signal and a task class with every handler. Where two of its processes speak at once, each one's
order is kept, and the next delivery stands behind the last word of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Heard = tuple[str, ...]

RUN = ("task_received", "task_prerun", "before_start")
SENT = ("before_task_publish", "after_task_publish", "task_sent")
SUCCESS = ("on_success", "task_success", "after_return:SUCCESS", "task_postrun:SUCCESS")
LOST = ("task_failure:WorkerLostError",)
LOST_RETRY = (*SENT, "on_retry:WorkerLostError", "task_retry:Retry:WorkerLostError")


def failure(error: str) -> Heard:
    return (*killed(error), f"task_postrun:FAILURE:{error}")


def killed(error: str) -> Heard:
    return f"on_failure:{error}", f"task_failure:{error}", f"after_return:FAILURE:{error}"


def retry(error: str) -> Heard:
    return (
        *SENT,
        f"on_retry:{error}",
        f"task_retry:Retry:{error}",
        "task_postrun:RETRY:Retry",
    )


@dataclass(frozen=True)
class Row:
    """One outcome in one or more modes; `facts` None is the same. `difference` begins the row of
    docs/differences.md that says why the two differ."""

    name: str
    task: str
    modes: tuple[str, ...]
    ours: Heard
    facts: Heard | None = None
    difference: str = ""

    @property
    def id(self) -> str:
        return f"{self.name} / {'+'.join(self.modes)}"


EVERY = ("early", "late", "reject")
AT_ONCE = ("early", "late")
AGAIN = ("late", "reject")

ROWS = (
    Row("return", "returns", EVERY, (*RUN, *SUCCESS)),
    Row("exception", "raises", EVERY, (*RUN, *failure("ValueError"))),
    Row("retry", "retries", EVERY, (*RUN, *retry("KeyError"), *RUN, *SUCCESS)),
    Row(
        "no retry left",
        "retries_too_often",
        EVERY,
        (*RUN, *retry("KeyError"), *RUN, *failure("KeyError")),
    ),
    Row(
        "autoretry_for",
        "is_retried",
        EVERY,
        (*RUN, *retry("ValueError"), *RUN, *failure("ValueError")),
    ),
    Row("Ignore", "ignores", EVERY, (*RUN, "task_postrun:IGNORED:Ignore")),
    Row(
        "Reject(requeue=False)",
        "rejects",
        EVERY,
        (*RUN, "task_postrun:REJECTED:Reject", "task_failure:Reject"),
    ),
    Row(
        "Reject(requeue=True)",
        "requeues",
        AGAIN,
        (*RUN, "task_postrun:REJECTED:Reject", *RUN, *SUCCESS),
    ),
    Row(
        "Reject(requeue=True)",
        "requeues",
        ("early",),
        (*RUN, "task_postrun:REJECTED:Reject", *RUN, *SUCCESS),
        (*RUN, "task_postrun:REJECTED:Reject"),
        "`Reject(requeue=True)` without `acks_late`",
    ),
    Row("soft limit", "meets_soft_limit", EVERY, (*RUN, *failure("SoftTimeLimitExceeded"))),
    Row(
        "hard limit",
        "meets_hard_limit",
        EVERY,
        (*RUN, *killed("TimeLimitExceeded")),
        (
            *RUN,
            "task_failure:TimeLimitExceeded",
            "on_failure:TimeLimitExceeded",
            "after_return:FAILURE:TimeLimitExceeded",
            "task_failure:TimeLimitExceeded",
            "task_postrun:None:None",
        ),
        "`task_failure` after a hard time limit",
    ),
    Row("pool process died", "kills", AT_ONCE, (*RUN, *LOST)),
    Row("pool process died", "kills", ("reject",), (*RUN, *RUN, *SUCCESS)),
    Row(
        "pool process died, retry_on_worker_lost",
        "kills_with_retry",
        EVERY,
        (*RUN, *LOST_RETRY, *RUN, *SUCCESS),
    ),
    Row("sys.exit()", "says_exit", AT_ONCE, (*RUN, "task_postrun:None:None", *LOST)),
    Row(
        "sys.exit()",
        "says_exit",
        ("reject",),
        (*RUN, "task_postrun:None:None", *RUN, *SUCCESS),
    ),
)

ON_A_LOOP = (
    Row("return / async", "returns_on_a_loop", EVERY, (*RUN, *SUCCESS)),
    Row("exception / async", "raises_on_a_loop", EVERY, (*RUN, *failure("ValueError"))),
    Row("retry / async", "retries_on_a_loop", EVERY, (*RUN, *retry("KeyError"), *RUN, *SUCCESS)),
)
ENDINGS_OF_A_PROCESS = ("hard limit", "pool process died", "sys.exit()")
"""Rows, by the beginnings of their names, that are about prefork alone."""

EXPIRED = Row("expired", "returns", EVERY, ("task_revoked:False:None:True",))
EXPIRED_LATER = Row(
    "expired while it waits for its time",
    "returns",
    EVERY,
    ("task_revoked:False:None:True",),
    ("task_received", "task_revoked:False:None:True"),
    "`task_received` of a task that waits for its time",
)
REVOKED = Row("revoked before start", "returns", EVERY, ("task_revoked:False:None:False",))
TERMINATED = Row(
    "terminated",
    "waits",
    EVERY,
    (*RUN, "task_revoked:True:15:False"),
    (*RUN, "task_postrun:None:None", "task_revoked:True:15:False"),
    "`task_postrun` of a task whose process is ended",
)
UNKNOWN = Row("unknown task", "nobody.knows.this", ("early",), ("task_unknown:NotRegistered",))
UNREADABLE = Row("unreadable", "returns", ("early",), ("task_rejected",))
UNSENDABLE = Row(
    "what follows can't be sent",
    "returns",
    EVERY,
    (
        *RUN,
        "task_internal_error:ImproperlyConfigured",
        *failure("ImproperlyConfigured"),
    ),
    (
        *RUN,
        "task_postrun:SUCCESS",
        "task_internal_error:ImproperlyConfigured",
        "on_failure:ImproperlyConfigured",
        "task_failure:ImproperlyConfigured",
    ),
    "what follows from a task can't be sent",
)
REPLACED = Row(
    "replaced by another call",
    "is_replaced",
    EVERY,
    (*RUN, "on_replace", *SENT, "task_postrun:IGNORED:Ignore", *RUN, *SUCCESS),
)
FOLLOWS = Row("a callback, an error callback, the next step", "returns", EVERY, (*SENT, *RUN))
"""Of what follows; its own end comes behind."""
COLD_EARLY = Row(
    "cold stop",
    "waits",
    ("early",),
    (*RUN, *LOST),
    (*RUN, "task_postrun:None:None", "on_retry:Retry", "task_retry:Retry:Retry"),
    "an early task that runs when its worker is stopped cold",
)
COLD_LATE = Row(
    "cold stop",
    "waits",
    AGAIN,
    (*RUN, *RUN, *SUCCESS),
    (*RUN, "task_postrun:None:None", *RUN, *SUCCESS),
    "`task_postrun` of a task whose process is ended",
)
DIED_EARLY = Row(
    "the whole worker died",
    "waits",
    ("early",),
    (*RUN, *LOST),
    RUN,
    "an early task whose whole worker dies",
)
DIED_LATE = Row("the whole worker died", "waits", AGAIN, (*RUN, *RUN, *SUCCESS))
ALL_ROWS = (
    *ROWS, EXPIRED, EXPIRED_LATER, REVOKED, TERMINATED, UNKNOWN, UNREADABLE, UNSENDABLE, REPLACED,
    FOLLOWS, COLD_EARLY, COLD_LATE, DIED_EARLY, DIED_LATE,
)  # fmt: skip

EAGER: dict[str, Heard] = {
    "returns": (*RUN[1:], *SUCCESS),
    "raises": (*RUN[1:], *failure("ValueError")),
    "retries": (*RUN[1:], *retry("KeyError")[3:], *RUN[1:], *SUCCESS),
    "retries_too_often": (*RUN[1:], *retry("KeyError")[3:], *RUN[1:], *failure("KeyError")),
    "ignores": (*RUN[1:], "task_postrun:IGNORED:Ignore"),
    "rejects": (*RUN[1:], "task_postrun:REJECTED:Reject", "task_failure:Reject"),
}

LIFE: Heard = (
    "import_modules",
    "celeryd_init",
    "worker_init",
    "setup_logging",
    "celeryd_after_setup",
    "worker_before_create_process",
    "worker_process_init",
    "worker_ready",
    "worker_shutting_down",
    "worker_process_shutdown",
    "worker_shutdown",
)
"""In Celery as here, with ``heartbeat_sent`` now and then."""

NEVER = {
    "beat_init": "there is no beat yet",
    "beat_embedded_init": "there is no beat yet",
    "eventlet_pool_started": "there is no pool of greenlets yet",
    "eventlet_pool_preshutdown": "there is no pool of greenlets yet",
    "eventlet_pool_postshutdown": "there is no pool of greenlets yet",
    "eventlet_pool_apply": "there is no pool of greenlets yet",
    "user_preload_options": "the command line has no options of the app's own",
}
"""Signals that no outcome sends."""


def named(event: str, task: str, task_id: str, value: int = 42) -> dict[str, Any]:
    """All keyword arguments of an event, as `heard_app.shown` shows them."""
    name, *details = event.split(":")
    call = {"task_id": task_id, "args": [1], "kwargs": {"y": 2}}
    of_task = {"sender": f"task {task}"}
    error = details[-1] if details else ""
    raised = {
        "exception": error,
        "traceback": "traceback",
        "einfo": f"einfo {error}",
    }
    request = {"request": f"request {task_id}"}
    publish = {"sender": task, "body": "tuple", "headers": "dict", "exchange": ""}
    match name:
        case "before_task_publish":
            return {**publish, "properties": "dict", "declare": "list", "routing_key": "celery"}
        case "after_task_publish":
            return {**publish, "routing_key": "celery"}
        case "task_sent":
            return {"sender": task, **call, "task": task, "eta": None, "taskset": None}
        case "task_received":
            return {"sender": "Taker", **request}
        case "task_prerun":
            return {**of_task, **call, "task": f"task {task}"}
        case "before_start":
            return call
        case "on_success":
            return {**call, "retval": value}
        case "task_success":
            return {**of_task, "result": value, "runtime": "float"}
        case "on_failure" | "on_retry":
            return {**call, "exc": error, "einfo": f"einfo {error}"}
        case "after_return":
            retval = value if details == ["SUCCESS"] else error
            return {**call, "status": details[0], "retval": retval, "einfo": None}
        case "task_postrun":
            state: Any = details[0] if details[0] != "None" else None
            returned = value if details == ["SUCCESS"] else (error if state else None)
            return {**of_task, **call, "task": f"task {task}", "retval": returned, "state": state}
        case "task_failure":
            return {**of_task, **call, **raised}
        case "task_internal_error":
            return {**of_task, **call, **raised, **request}
        case "task_retry":
            return {**of_task, **request, "reason": details[0], "einfo": f"einfo {error}"}
        case "task_revoked":
            terminated, signum, expired = details
            return {
                **of_task,
                **request,
                "terminated": terminated == "True",
                "signum": None if signum == "None" else int(signum),
                "expired": expired == "True",
            }
        case "task_unknown":
            about = {"message": f"message {task_id}", "name": task, "id": task_id}
            return {"sender": "Taker", "exc": error, **about}
        case _:
            raise AssertionError(event)
