"""A worker that is gone while nobody is left to say so: `why` counts for itself."""

from __future__ import annotations

import json

from umbel import Umbel
from umbel.clock import ManualClock
from umbel.ports import RunRecord
from umbel.silence import node_name, silent_for


def record(seen_at: float, **told: object) -> RunRecord:
    return RunRecord("run1", json.dumps(told).encode(), seen_at)


def test_a_run_is_silent_after_its_own_lease() -> None:
    assert silent_for(record(100.0, lease_time=30.0), 129.0) is None
    assert silent_for(record(100.0, lease_time=30.0), 131.0) == 31.0
    assert silent_for(record(100.0, lease_time=300.0), 131.0) is None


def test_what_a_stranger_tells_of_itself_is_taken_as_it_is() -> None:
    for info in (b"", b"[]", b"{", b"\xff", b'{"hostname": 5, "lease_time": "x"}'):
        stranger = RunRecord("run1", info, 0.0)
        assert silent_for(stranger, 1e9) is None
        assert node_name(stranger) == "run1"


def test_why_says_that_the_only_worker_is_silent() -> None:
    clock = ManualClock()
    with Umbel("silence", broker="memory://silence", clock=clock) as app:
        broker = app.broker
        running = app.send_task("t")
        info = json.dumps({"hostname": "umbel@there", "lease_time": 30.0}).encode()
        broker.enlist("run", "run#1", info)
        broker.turn("run#1", 1, queues=["celery"], begin=1, limit=1)
        waiting = app.send_task("t")
        assert str(app.why(running.id)) == "running in worker umbel@there, from queue 'celery'"
        assert str(app.why(waiting.id)) == "waiting at place 1 of queue 'celery'"
        clock.advance(46.0)
        assert "that worker has given no sign of life for 46 s" in str(app.why(running.id))
        assert str(app.why(waiting.id)).endswith("; no worker is running")
