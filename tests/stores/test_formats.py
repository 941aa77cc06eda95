"""Records in the format that the settings say, on the stores that look into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pytest
from tests.servers import Memcached

from umbel.formats import ResultFormat
from umbel.message import Result
from umbel.ports import ResultStore
from umbel.states import FAILURE, SUCCESS
from umbel.stored import decode_meta, encode_meta
from umbel.stores.cache import MemcachedStore
from umbel.stores.filesystem import FileStore
from umbel.stores.sql import SqlStore

Make = Callable[[ResultFormat], ResultStore]

FORMATS = {
    "json": ResultFormat.find("json", None, ("json",), {}, 2**20),
    "json, compressed": ResultFormat.find("json", "zlib", ("json",), {}, 2**20),
    "msgpack": ResultFormat.find("msgpack", None, ("msgpack",), {}, 2**20),
    "yaml": ResultFormat.find("yaml", None, ("yaml",), {}, 2**20),
    "pickle": ResultFormat.find("pickle", None, ("pickle",), {}, 2**20),
    "pickle, compressed": ResultFormat.find("pickle", "bzip2", ("pickle",), {}, 2**20),
}


@pytest.fixture(params=["sql", "cache", "filesystem"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    opened: list[ResultStore] = []

    def store(form: ResultFormat) -> ResultStore:
        made: ResultStore
        if request.param == "sql":
            made = SqlStore(f"sqlite:///{tmp_path}/results.db", form=form)
        elif request.param == "filesystem":
            made = FileStore(str(tmp_path / "results"), form=form)
        else:
            server: Memcached = request.getfixturevalue("memcached")
            made = MemcachedStore([f"127.0.0.1:{server.port}"], form=form)
        made.open()
        opened.append(made)
        return made

    yield store
    for each in opened:
        each.forget(["a", "b"])
        each.close()


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_each_format_comes_back_and_keeps_its_success(make: Make, form: ResultFormat) -> None:
    store = make(form)
    meta = encode_meta("a", SUCCESS, {"n": [1, None, "é"]}, children=[], form=form)
    store.put([Result("a", SUCCESS, meta)])
    store.put([Result("a", FAILURE, encode_meta("a", FAILURE, ValueError("late"), form=form))])
    (record,) = store.get(["a"])
    assert record is not None
    assert record.state == SUCCESS
    assert decode_meta(record.meta, form) == decode_meta(meta, form)


def test_pickle_keeps_exceptions_and_what_json_cannot_carry(make: Make) -> None:
    form = FORMATS["pickle"]
    store = make(form)
    error = KeyError(date(2026, 1, 2), {3})
    store.put([Result("a", FAILURE, encode_meta("a", FAILURE, error, form=form))])
    (record,) = store.get(["a"])
    assert record is not None
    found = decode_meta(record.meta, form).result
    assert repr(found) == repr(error)
