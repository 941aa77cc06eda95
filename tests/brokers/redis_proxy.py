"""A way to a server that loses what it is told to lose."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading


class Proxy:
    """Between a driver and the server at `port`, at a port of its own.

    `lose_replies`: what is asked reaches the server, and the connection ends in place of its
    answer. `swallow`: what is asked reaches nobody, and nothing is said of it.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self.lose_replies = False
        self.swallow = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._deaf: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self) -> None:
        """End all connections."""
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def deafen(self) -> None:
        """The connections that there are carry nothing any more, without an end; new ones do."""
        self._deaf |= self._open

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        target = "127.0.0.1", self._target
        with client, contextlib.suppress(OSError), socket.create_connection(target) as server:
            self._open |= {client, server}
            try:
                self._carry_between(client, server)
            finally:
                self._open -= {client, server}
                self._deaf -= {client, server}

    def _carry_between(self, client: socket.socket, server: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ)
            selector.register(server, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    is_asked = key.fileobj is client
                    data = (client if is_asked else server).recv(65536)
                    if not data or (self.lose_replies and not is_asked):
                        return
                    if not (self.swallow or client in self._deaf):
                        (server if is_asked else client).sendall(data)
