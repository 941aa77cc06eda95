"""A worker's life in one function: from the settings to the exit code.

1. Import what the app's settings name, fire ``celeryd_init``; say what can't work, before anything
   starts.
2. Fire ``worker_init``, set up logging, fire ``celeryd_after_setup``.
3. Make the scoreboard and fork the fork server: no thread and no connection exists yet.
4. Become the supervisor: open the broker, enlist, take over from dead runs of this host.
5. Watch until told to stop; leave the broker and remove the scoreboard.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import time
import uuid
from dataclasses import dataclass

from umbel import signals
from umbel.app import Umbel
from umbel.exceptions import BrokerUnavailable, ImproperlyConfigured
from umbel.routing import Queue, worker_direct
from umbel.serializers import PICKLE_TYPE
from umbel.settings import censored
from umbel.urls import lives_in_one_process, needs_a_server
from umbel.worker.children import slots_for
from umbel.worker.executor import pack_options
from umbel.worker.forkserver import ForkServer, Order
from umbel.worker.logs import name_process, say_hello, set_up_logging
from umbel.worker.options import PoolSize, WorkerOptions, node_name
from umbel.worker.patience import pauses
from umbel.worker.process import POOLS, Setup, run_pool_process
from umbel.worker.scoreboard import Scoreboard
from umbel.worker.supervisor import Supervisor
from umbel.worker.undertaker import host_id

logger = logging.getLogger("umbel.worker")


@dataclass(frozen=True, slots=True)
class Worker:
    """What signals of the worker's life have as their sender."""

    app: Umbel
    hostname: str
    options: WorkerOptions
    pool: str
    size: PoolSize
    queues: tuple[str, ...]
    consumes: tuple[Queue, ...]


def run_worker(app: Umbel, options: WorkerOptions) -> int:
    """Run a worker until it is stopped; its exit code.

    Raises `ImproperlyConfigured`, `QueueNotFound` and `BrokerUnavailable` before it has started.
    """
    _load(app, options)
    worker = _arrange(app, options)
    signals.celeryd_init.send(worker.hostname, instance=worker, conf=app.conf, options=options)
    worker = _arrange(app, options)  # its receivers may have changed settings
    _check(worker)
    signals.worker_init.send(worker)
    set_up_logging(app.conf, options)
    signals.celeryd_after_setup.send(worker.hostname, instance=worker, conf=app.conf)
    worker = _arrange(app, options)  # and these the queues
    setup = _make_setup(worker)
    return _run_solo(worker, setup) if worker.pool == "solo" else _run_pool(worker, setup)


def _run_pool(worker: Worker, setup: Setup) -> int:
    def body(order: Order) -> int:
        name_process(f"ForkPoolWorker-{order.number}")
        return run_pool_process(setup, order)

    return _start(worker, setup, ForkServer.start(body)).loop()


def _run_solo(worker: Worker, setup: Setup) -> int:
    supervisor = _start(worker, setup, None)
    process = supervisor.adopt_self()
    loop = supervisor.loop_beside()
    process.run()
    supervisor.solo_ended()
    return loop.join()


def _start(worker: Worker, setup: Setup, server: ForkServer | None) -> Supervisor:
    try:
        _reach_broker(worker, setup)
        if worker.options.purge:
            worker.app.broker.purge(worker.queues)
        supervisor = Supervisor(setup, server, worker)
        supervisor.take_signals()
        supervisor.start()
    except BaseException:
        if server is not None:
            server.kill()
        setup.board.path.unlink(missing_ok=True)  # later it must stay: it may hold outcomes
        raise
    say_hello(worker.hostname, worker.app.connections.broker_url, worker.queues, worker.size)
    return supervisor


def _reach_broker(worker: Worker, setup: Setup) -> None:
    """Have the broker there; the settings say how long a worker waits for it when it starts."""
    conf = worker.app.conf
    again = conf.broker_connection_retry_on_startup
    if again is None:
        # A server may be about to start; a file that can't be opened is a mistake.
        has_server = needs_a_server(worker.app.connections.broker_url)
        again = conf.broker_connection_retry and has_server
    waits = pauses(conf) if again else iter(())
    while True:
        try:
            return _declare(worker, setup)
        except BrokerUnavailable as error:
            if (pause := next(waits, None)) is None:
                raise
            logger.warning("%s Trying again in %.1f s.", error, pause)
            time.sleep(pause)


def _declare(worker: Worker, setup: Setup) -> None:
    """Make what the worker consumes exist, and all that this app knows of exchanges: a task that
    sends through one must not find it without its queues."""
    app = worker.app
    own = [queue.of_run(setup.run) for queue in worker.consumes if queue.per_run]
    if own:
        app.broker.enlist(setup.run, None, setup.info)
        for queue in own:
            app.broker.declare([queue.name], queue.links, run=setup.run)
    kept = [queue for queue in worker.consumes if not queue.per_run]
    known = dict.fromkeys((*kept, *(each for each in app.router.queues if not each.per_run)))
    links = [link for queue in known for link in queue.links]
    app.broker.declare([queue.name for queue in kept], links)


def _load(app: Umbel, options: WorkerOptions) -> None:
    """Make the app the current one and import what it names."""
    app.set_current()
    app.set_default()
    app.connections.in_worker = True
    signals.import_modules.send(app)
    app.load_modules()
    for module in options.include:
        importlib.import_module(module)


def _arrange(app: Umbel, options: WorkerOptions) -> Worker:
    """The worker that the command line and the settings, as they are now, ask for."""
    conf = app.conf
    pool = options.pool or conf.worker_pool
    size = PoolSize.of(
        pool,
        options.concurrency or conf.worker_concurrency,
        options.processes or conf.worker_processes,
    )
    queues = app.router.select(options.queues or app.selected_queues, options.exclude_queues)
    hostname = node_name(options.hostname)
    if conf.worker_direct:
        queues = (*queues, worker_direct(hostname))
    return Worker(
        app=app,
        hostname=hostname,
        options=options,
        pool=pool,
        size=size,
        queues=tuple(queue.name for queue in queues),
        consumes=queues,
    )


def _check_root(reads_pickle: bool) -> None:
    """What comes as pickle runs as whoever reads it."""
    if reads_pickle and os.geteuid() == 0 and not os.environ.get("C_FORCE_ROOT"):
        raise ImproperlyConfigured(
            "accept_content has 'pickle', and this worker runs as root: whoever can send a message "
            "could do anything on this machine. Run it as another user, or set C_FORCE_ROOT=1 in "
            "the environment"
        )


def _check(worker: Worker) -> None:
    """Refuse what can't work, in one sentence each."""
    app = worker.app
    if worker.pool not in POOLS:
        raise ImproperlyConfigured(
            f"pool {worker.pool!r} isn't available; there are: {', '.join(POOLS)}"
        )
    # What is named there has to be known, and its packages installed.
    _check_root(PICKLE_TYPE in app.call_reader().accepted)
    app.result_format  # noqa: B018  # the look finds it
    app.connections.check_options()
    # What a driver makes before it is opened is made once, for all processes.
    app.connections.unopened()
    read, write = app.connections.broker_url, app.connections.outlet_url
    if read != write:
        raise ImproperlyConfigured(
            f"broker_read_url is {censored('broker_url', read)!r} and broker_write_url "
            f"{censored('broker_url', write)!r}: what follows a task is sent in one step with its "
            "end, so a worker needs both to be one broker. Senders may use another"
        )
    # Only asked what it is: before the fork server no connection may exist.
    if not app.connections.unopened().features.processes:
        raise ImproperlyConfigured(
            f"the broker {app.connections.broker_url} lives inside one process, so no worker can "
            "take anything from it; name one that processes share, for example "
            "sqlite:///tasks.db"
        )
    store_url = app.connections.store_url or ""
    if lives_in_one_process(store_url):
        raise ImproperlyConfigured(
            f"the result store {store_url} lives inside one process, so nobody would see what a "
            "worker keeps there; leave result_backend unset, or name one that processes share"
        )
    if worker.pool == "solo":
        limited = [name for name, task in app.tasks.items() if task.options.time_limit]
        if worker.options.time_limit or limited:
            what = f"task {limited[0]!r} has one" if limited else "--time-limit is given"
            raise ImproperlyConfigured(
                f"the solo pool can't keep a hard time limit ({what}), since it would have to end "
                "the worker itself; use --pool prefork, or soft limits"
            )


def _make_setup(worker: Worker) -> Setup:
    app, conf, options = worker.app, worker.app.conf, worker.options
    run = uuid.uuid4().hex[:20]
    queues = tuple(queue.of_run(run).name for queue in worker.consumes)
    size, location = worker.size, app.connections.unopened().location
    slots = slots_for(size.processes, size.lanes)
    board = Scoreboard.create(run, slots, location, lanes=size.lanes)
    info = {
        "hostname": worker.hostname,
        "host": host_id(),
        "pid": os.getpid(),
        "board": str(board.path),
        "pool": worker.pool,
        "processes": size.processes,
        "concurrency": size.processes * size.lanes,
        "queues": list(queues),
        "python": sys.version.split()[0],
        "lease_time": conf.worker_lease_time,
        "answers": conf.worker_enable_remote_control,
        "started_at": time.time(),
        "options": pack_options(app),
    }
    multiplier = options.prefetch_multiplier
    return Setup(
        app=app,
        run=run,
        hostname=worker.hostname,
        queues=queues,
        board=board,
        info=json.dumps(info).encode(),
        lease_time=conf.worker_lease_time,
        pool=worker.pool,
        processes=size.processes,
        lanes=size.lanes,
        multiplier=conf.worker_prefetch_multiplier if multiplier is None else multiplier,
        max_tasks=options.max_tasks_per_child or conf.worker_max_tasks_per_child,
        max_memory=options.max_memory_per_child or conf.worker_max_memory_per_child,
        time_limit=options.time_limit,
        soft_time_limit=options.soft_time_limit,
        started_in=options.started_in or os.getcwd(),
        replaces=worker.pool != "solo",
    )
