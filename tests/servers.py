"""Servers for tests: started from what is installed, on ports of their own, ended by process id.

Nothing here is skipped: a server that isn't installed is an error that says what to install.
"""

from __future__ import annotations

import ctypes
import glob
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

PATIENCE = 60.0


class Server(ABC):
    """One server with a folder of its own, at 127.0.0.1. `kill` and `start` go in turns."""

    package: ClassVar[str]
    """What Debian calls it."""
    users: ClassVar[Sequence[str]] = ("nobody",)
    """Who it runs as where the tests run as root, which database servers refuse; the first that
    this machine knows."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"umbel-{type(self).__name__.lower()}-"))
        self.user = self._unprivileged()
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> Sequence[str]: ...

    @abstractmethod
    def answers(self) -> bool:
        """Whether it serves."""

    def prepare(self) -> None:
        """Fill the folder, once."""
        assert self.folder.is_dir()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                user=self.user,
                extra_groups=None if self.user is None else [],
                preexec_fn=_end_with_the_tests,
            )
        deadline = time.monotonic() + PATIENCE
        while not self.answers():
            assert self._process.poll() is None, f"it ended at once: {self.log}"
            assert time.monotonic() < deadline, f"it doesn't answer: {self.log}"
            time.sleep(0.02)

    @property
    def pid(self) -> int | None:
        """None while it doesn't run."""
        return None if self._process is None else self._process.pid

    def kill(self) -> None:
        """End it without notice, and everything that it started."""
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Let it keep its connections, and do nothing, until `thaw`."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def accepts(self) -> bool:
        """Whether something listens at its port."""
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def run(self, *command: str) -> None:
        """One of its tools, as its user."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            user=self.user,
            extra_groups=None if self.user is None else [],
            check=False,
        )
        assert done.returncode == 0, f"{command[0]}: {done.stdout + done.stderr!r}"

    def binary(self, *names: str) -> str:
        """The path of the first of these programs that is there."""
        folders = [*os.get_exec_path(), "/usr/sbin", "/usr/local/sbin"]
        folders += sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
        for name in names:
            if found := shutil.which(name, path=os.pathsep.join(folders)):
                return found
        raise AssertionError(
            f"{names[0]} isn't installed, which these tests need; install it, on Debian: "
            f"apt-get install {self.package} (`./dev test` does so when run as root)"
        )

    def _unprivileged(self) -> str | None:
        if os.getuid() != 0:
            return None
        known = {entry.pw_name for entry in pwd.getpwall()}
        return next(user for user in (*self.users, "nobody") if user in known)


class Memcached(Server):
    package = "memcached"

    def command(self) -> Sequence[str]:
        return [self.binary("memcached"), "-l", "127.0.0.1", "-p", str(self.port), "-U", "0"]

    def answers(self) -> bool:
        return self.accepts()


class Redis(Server):
    """Keeps what it was sent when it is killed and started again. `arguments` are its own."""

    package = "redis-server"

    def __init__(self, *arguments: str) -> None:
        super().__init__()
        self.arguments = arguments

    def command(self) -> Sequence[str]:
        return [
            self.binary("redis-server", "valkey-server"), "--bind", "127.0.0.1",
            "--port", str(self.port), "--dir", str(self.folder), "--save", "",
            "--appendonly", "yes", "--appendfsync", "no",
            "--unixsocket", self.socket, "--unixsocketperm", "777", *self.arguments,
        ]  # fmt: skip

    def answers(self) -> bool:
        if not self.accepts():
            return False
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(64).startswith(b"+PONG")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    results_url = url

    @property
    def socket(self) -> str:
        return str(self.folder / "socket")

    def flush(self) -> None:
        """Forget all that it keeps."""
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            sock.sendall(b"FLUSHALL\r\n")
            assert sock.recv(64).startswith(b"+OK")


class Sentinel(Server):
    """Watches a primary, which it calls `NAME`, and makes a replica of it the next one."""

    package = "redis-server"
    NAME = "main"

    def __init__(self, primary: Redis, *lines: str) -> None:
        """`lines` are further ones of its configuration."""
        super().__init__()
        self._primary = primary
        self._lines = lines

    def prepare(self) -> None:
        file = self.folder / "sentinel.conf"
        file.write_text(
            f"bind 127.0.0.1\nport {self.port}\ndir {self.folder}\n"
            f"sentinel monitor {self.NAME} 127.0.0.1 {self._primary.port} 1\n"
            f"sentinel down-after-milliseconds {self.NAME} 300\n"
            f"sentinel failover-timeout {self.NAME} 2000\n" + "\n".join(self._lines)
        )
        if self.user is not None:
            shutil.chown(file, self.user)

    def command(self) -> Sequence[str]:
        config = str(self.folder / "sentinel.conf")
        return [self.binary("redis-server", "valkey-server"), config, "--sentinel"]

    def answers(self) -> bool:
        return self.accepts()


class Watched:
    """A primary, its replica, and Sentinels that put the one in the place of the other."""

    def __init__(self) -> None:
        self.primary = Redis("--repl-diskless-sync-delay", "0")
        self.replica = Redis("--replicaof", "127.0.0.1", str(self.primary.port))
        self.sentinels = [Sentinel(self.primary) for _ in range(2)]
        self.servers: list[Server] = [self.primary, self.replica, *self.sentinels]

    def start(self) -> None:
        for server in self.servers:
            server.prepare()
            server.start()
        # Before a Sentinel knows of the other one and of the replica there is no failover.
        self.await_sentinels("num-slaves", "1")
        self.await_sentinels("num-other-sentinels", "1")
        with redis_client(self.replica.port) as client:
            poll(lambda: client.info("replication")["master_link_status"] == "up")

    def await_sentinels(self, field: str, value: str) -> None:
        poll(lambda: {self._said(each)[field] for each in self.sentinels} == {value})

    def await_promotion(self) -> None:
        """Until the replica is the primary, for the Sentinels too."""
        self.await_sentinels("port", str(self.replica.port))
        with redis_client(self.replica.port) as client:
            poll(lambda: client.execute_command("ROLE")[0] == "master")

    def _said(self, sentinel: Sentinel) -> dict[str, str]:
        with redis_client(sentinel.port) as client:
            flat = client.execute_command("SENTINEL", "MASTER", Sentinel.NAME)
        return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))

    @property
    def url(self) -> str:
        """With a Sentinel before them that isn't there."""
        return ";".join(
            f"sentinel://127.0.0.1:{port}" for port in (1, *(s.port for s in self.sentinels))
        )

    transport: ClassVar[dict[str, object]] = {"master_name": Sentinel.NAME}

    def remove(self) -> None:
        for server in self.servers:
            server.remove()


class Cluster:
    """Three Redis nodes, each with a third of the slots. One that is silent for `timeout_ms` is
    taken for dead."""

    def __init__(self, timeout_ms: int = 15_000) -> None:
        self.buses = [_free_port() for _ in range(3)]
        self.nodes = [
            Redis(
                "--cluster-enabled", "yes", "--cluster-node-timeout", str(timeout_ms),
                "--cluster-port", str(bus),
            )
            for bus in self.buses
        ]  # fmt: skip
        self._all = list(self.nodes)

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        first = self.nodes[0]
        for number, (node, bus) in enumerate(zip(self.nodes, self.buses, strict=True)):
            begin, end = 16384 * number // 3, 16384 * (number + 1) // 3 - 1
            self.tell(node, "CLUSTER", "ADDSLOTSRANGE", begin, end)
            self.tell(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if node is not first:
                self.tell(first, "CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        self.await_agreement()

    def await_agreement(self) -> None:
        """Until all nodes say the same, and that all is well."""

        def are_agreed() -> bool:
            told = [str(self.tell(node, "CLUSTER", "SLOTS")) for node in self.nodes]
            infos = [str(self.tell(node, "CLUSTER", "INFO")) for node in self.nodes]
            return len(set(told)) == 1 and all("cluster_state:ok" in each for each in infos)

        poll(are_agreed)

    def tell(self, node: Redis, *words: object) -> Any:
        with redis_client(node.port) as client:
            return client.execute_command(*words)

    def owner(self, slot: int) -> Redis:
        for first, last, (_, port, *_), *_ in self.tell(self.nodes[0], "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self._all if node.port == port)
        raise AssertionError(f"nobody has slot {slot}")

    def kill(self, node: Redis) -> None:
        """It is asked for nothing from then on."""
        node.kill()
        self.nodes.remove(node)

    def id_of(self, node: Redis) -> str:
        told: str = self.tell(node, "CLUSTER", "MYID")
        return told

    def add_replica(self, of: Redis) -> Redis:
        """A node that takes its place when it dies."""
        bus = _free_port()
        replica = Redis(*self.nodes[0].arguments[:4], "--cluster-port", str(bus))
        self.nodes.append(replica)
        self._all.append(replica)
        replica.start()
        self.tell(self.nodes[0], "CLUSTER", "MEET", "127.0.0.1", replica.port, bus)
        self.await_agreement()
        self.tell(replica, "CLUSTER", "REPLICATE", self.id_of(of))
        with redis_client(replica.port) as client:
            poll(lambda: client.info("replication").get("master_link_status") == "up")
        self.await_agreement()
        return replica

    def begin_to_move(self, slot: int, target: Redis) -> None:
        """The first half of giving a slot away: its owner has what it has, and nothing more."""
        source = self.owner(slot)
        self.tell(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self.tell(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))

    def move(self, slot: int, target: Redis) -> None:
        """The second half: keys, then the slot."""
        source = self.owner(slot)
        while names := self.tell(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            self.tell(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *names)
        for node in (target, source, *self.nodes):
            self.tell(node, "CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))
        self.await_agreement()

    def flush(self) -> None:
        for node in self.nodes:
            node.flush()

    @property
    def url(self) -> str:
        """Of a node that isn't there, and of one that is."""
        return f"redis+cluster://127.0.0.1:1;127.0.0.1:{self.nodes[0].port}"

    def remove(self) -> None:
        for node in self._all:
            node.remove()


class PostgreSQL(Server):
    package = "postgresql"
    users = ("postgres",)

    def prepare(self) -> None:
        data = str(self.folder / "data")
        self.run(
            self.binary("initdb"), "-D", data, "-U", "umbel", "-A", "trust", "-E", "UTF8",
            "--locale=C", "--no-sync",
        )  # fmt: skip

    def command(self) -> Sequence[str]:
        return [
            self.binary("postgres"), "-D", str(self.folder / "data"), "-h", "127.0.0.1",
            "-p", str(self.port), "-k", "", "-F", "-c", "max_connections=50",
            "-c", "shared_buffers=16MB",
        ]  # fmt: skip

    def answers(self) -> bool:
        asked = [self.binary("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, check=False).returncode == 0

    @property
    def plain_url(self) -> str:
        return f"postgresql://umbel@127.0.0.1:{self.port}/postgres"

    @property
    def url(self) -> str:
        """As SQLAlchemy wants it."""
        return self.plain_url.replace("postgresql:", "postgresql+psycopg:")

    @property
    def results_url(self) -> str:
        return f"db+{self.url}"


class MariaDB(Server):
    package = "mariadb-server"
    users = ("mysql",)

    def prepare(self) -> None:
        data = self.folder / "data"
        self.run(
            self.binary("mariadb-install-db", "mysql_install_db"), "--no-defaults",
            f"--datadir={data}", "--auth-root-authentication-method=normal",
            "--skip-test-db", "--innodb-flush-log-at-trx-commit=2", "--innodb-log-file-size=8M",
        )  # fmt: skip

    def command(self) -> Sequence[str]:
        return [
            self.binary("mariadbd", "mysqld"), "--no-defaults", f"--datadir={self.folder / 'data'}",
            "--bind-address=127.0.0.1", f"--port={self.port}", f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}", "--innodb-flush-log-at-trx-commit=2",
            "--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M",
            "--character-set-server=utf8mb4",
        ]  # fmt: skip

    def answers(self) -> bool:
        import pymysql

        try:
            connection = pymysql.connect(
                host="127.0.0.1", port=self.port, user="root", connect_timeout=2
            )
        except pymysql.err.OperationalError:
            return False
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS umbel")
        connection.close()
        return True

    @property
    def url(self) -> str:
        """As SQLAlchemy wants it."""
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/umbel"


def redis_client(port: int) -> Any:
    """Of redis-py, whose replies have the types of the commands."""
    import redis

    return redis.Redis(port=port, decode_responses=True, socket_timeout=PATIENCE)


def poll(ask: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ask():
        assert time.monotonic() < deadline, "what is waited for never came"
        time.sleep(0.02)


def _end_with_the_tests() -> None:
    """Where the system can: a test run that is killed leaves no server behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _serve(server: Server) -> Iterator[Server]:
    try:
        server.prepare()
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def memcached() -> Iterator[Server]:
    yield from _serve(Memcached())


@pytest.fixture(scope="session")
def redis() -> Iterator[Server]:
    yield from _serve(Redis())


@pytest.fixture
def watched() -> Iterator[Watched]:
    """A primary and its replica under Sentinels, of one test's own."""
    made = Watched()
    try:
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="session")
def redis_over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """URL, certificate of a server that speaks TLS."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    above = [each for each in folder.parents if each.owner() == folder.owner()]
    shared = Path(tempfile.gettempdir())
    for file in (
        folder,
        *itertools.takewhile(lambda each: each != shared, above),
        certificate,
        key,
    ):
        file.chmod(0o755)
    port = _free_port()
    server = Redis(
        "--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key),
        "--tls-auth-clients", "no", "--save", "",
    )  # fmt: skip
    try:
        server.start()
        yield f"127.0.0.1:{port}", certificate
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    yield from _serve(PostgreSQL())


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    yield from _serve(MariaDB())
