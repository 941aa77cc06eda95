"""A service for ``umbel demo`` that hands out files over HTTP, but not when first asked."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

Trouble = Literal["refuse", "hang"]

_TROUBLES: Sequence[Sequence[Trouble]] = (
    ("refuse",),
    ("refuse", "hang"),
    ("refuse",),
    ("refuse", "refuse"),
)
"""What happens to the first requests for a file; the files take these in turn."""
_LONGEST_HANG = 10.0


class FlakyService:
    """An HTTP server of this process, on a free port of this machine. A context manager."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._asked: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), partial(_Handler, self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def urls(self) -> list[str]:
        """Where each file is to be had, in the order of the paths."""
        port = self._server.server_address[1]
        return [f"http://127.0.0.1:{port}/{number}" for number in range(len(self._paths))]

    @property
    def failures(self) -> int:
        """How many requests ended without the file: each must have led to a retry."""
        with self._lock:
            return self._asked.total() - sum(
                self._asked[number] > 0 for number in range(len(self._paths))
            )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def ask(self, number: int) -> Trouble | Path:
        """What this request for a file gets."""
        with self._lock:
            earlier = self._asked[number]
            self._asked[number] += 1
        troubles = _TROUBLES[number % len(_TROUBLES)]
        return troubles[earlier] if earlier < len(troubles) else Path(self._paths[number])

    def hang(self) -> None:
        """Keep a client waiting for longer than it will."""
        self._closing.wait(_LONGEST_HANG)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, service: FlakyService, *arguments: Any) -> None:
        self._service = service  # the base class answers the request in its constructor
        super().__init__(*arguments)

    def do_GET(self) -> None:
        match self._service.ask(int(self.path.strip("/"))):
            case "refuse":
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
            case "hang":
                self._service.hang()
            case Path() as path:
                self._send(path)

    def _send(self, path: Path) -> None:
        try:
            file = path.open("rb")
        except OSError:
            self.send_error(HTTPStatus.GONE)
            return
        with file:
            self.send_response(HTTPStatus.OK)
            self.end_headers()
            shutil.copyfileobj(file, self.wfile)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no news."""
