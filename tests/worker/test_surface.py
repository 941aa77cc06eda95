"""What an app and its tasks can say, in real workers: replaced tasks, forks, chosen queues."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.harness import until
from tests.worker.living import Place

from umbel import AsyncResult, Umbel, signature
from umbel.canvas import Signature
from umbel.result import result_from_tuple


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("surface"))
    try:
        made.worker("-c", "2", app="tests.worker.surface_app")
        yield made
    finally:
        made.close()


def sig(place: Place, name: str, *args: object, **options: Any) -> Signature:
    return signature(name, args, options=options, app=place.app)


def ended(place: Place, result: AsyncResult[Any]) -> AsyncResult[Any]:
    until(result.ready, what=place.logs())
    return result


def test_a_replaced_task_has_the_result_of_what_took_its_place(place: Place) -> None:
    assert ended(place, sig(place, "replaced", ["add"]).delay()).result == 3
    assert ended(place, sig(place, "replaced", ["add", "add", "add"]).delay()).result == 23


def test_what_follows_a_replaced_task_follows_what_took_its_place(place: Place) -> None:
    chained = sig(place, "replaced", ["add", "add"]) | sig(place, "add", 100)
    result = chained.apply_async(link=sig(place, "seen", task_id="callback"))
    assert ended(place, result).result == 113
    assert result.parent.result == 13
    callback = ended(place, place.app.AsyncResult("callback")).result
    assert (callback["args"], callback["root"]) == ([113], result.parent.id)


def test_errbacks_of_a_replaced_task_hear_of_what_took_its_place(place: Place) -> None:
    result = sig(place, "replaced", ["fails"]).apply_async(
        link_error=sig(place, "seen", task_id="errback")
    )
    assert repr(ended(place, result).result) == 'ValueError("it can\'t be done")'
    assert ended(place, place.app.AsyncResult("errback")).result["args"] == [result.id]


def test_a_task_is_replaced_again_and_again(place: Place) -> None:
    result = sig(place, "nested", 3).apply_async(task_id="deep")
    assert ended(place, result).result["nesting"] == 4
    assert result.result["id"] == "deep"


def test_a_call_of_its_own_keeps_the_request(place: Place) -> None:
    result = ended(place, sig(place, "second_time").delay())
    assert result.result == result.id


def test_a_result_that_is_returned_is_stored_by_its_id(place: Place) -> None:
    """As in Celery: as the tuple that `result_from_tuple` takes."""
    stored = ended(place, sig(place, "starts").delay()).get()
    (child_id, parent), parts = stored
    assert (parent, parts) == (None, None)
    assert ended(place, result_from_tuple(stored, place.app)).get() == 3
    assert place.app.AsyncResult(child_id).result == 3


def test_on_after_fork_was_sent_in_the_pool_process(place: Place) -> None:
    pid, forked = ended(place, sig(place, "forks").delay()).result
    assert forked[-1] == pid


def test_select_queues_chooses_what_a_worker_consumes(place: Place) -> None:
    assert ended(place, sig(place, "add", 1, 2).apply_async(queue="second")).result == 3


def test_worker_main_runs_a_worker_of_this_app(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom umbel import Umbel\n"
        f"app = Umbel('program', broker='sqlite:///{tmp_path}/tasks.db')\n"
        "@app.task\ndef add(x, y):\n    return x + y\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(app.worker_main(['worker', '-c', '1', '-l', 'INFO']))\n"
    )
    running = subprocess.Popen(
        [sys.executable, str(program)], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        with Umbel(broker=f"sqlite:///{tmp_path}/tasks.db", set_as_current=False) as app:
            until(app.broker.runs)
            result = app.send_task("program.add", (1, 2))
            assert result.get(timeout=30) == 3
        running.send_signal(signal.SIGTERM)
        output, _ = running.communicate(timeout=30)
        assert running.returncode == 0, output
    finally:
        running.kill()
        running.communicate()


def test_stamps_go_with_what_follows(place: Place) -> None:
    chained = sig(place, "add", 1, 2) | sig(place, "seen")
    chained.link(sig(place, "seen", task_id="stamped-callback"))
    result = chained.stamp(customer="acme").apply_async()
    expected = {"stamps": {"customer": "acme"}, "stamped_headers": ["customer"]}
    assert expected.items() <= ended(place, result).result.items()
    callback = place.app.AsyncResult("stamped-callback")
    assert expected.items() <= ended(place, callback).result.items()


@pytest.mark.parametrize("pool", ["threads", "asyncio"])
def test_tasks_are_replaced_in_every_pool(tmp_path: Path, pool: str) -> None:
    place = Place(tmp_path)
    try:
        place.worker("-P", pool, "-c", "4", app="tests.worker.surface_app")
        results = [sig(place, name, 2).delay() for name in ("nested", "awaited") for _ in range(5)]
        for result in results:
            value = ended(place, result).result
            assert (value["id"], value["nesting"]) == (result.id, 3)
    finally:
        place.close()
