"""What Celery and Kombu have and Umbel doesn't, and what to use instead.

A sentence stands behind "… isn't in Umbel: ". `MODULES` are modules of which nothing is here: they
can be imported, and each of their names raises. `NAMES` are the missing names of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

_SCHEDULER: Final = "it comes with the release 'Scheduler', as periodic tasks do"
_WORKFLOWS: Final = (
    "groups and chords come with the release 'Workflows'; until then chain plain tasks (a | b), or "
    "send them one by one and ask their results"
)
_EVENTS: Final = "it comes with the release 'Events and remote control'"
_RABBITMQ: Final = "it comes with the release 'RabbitMQ'"
_BACKENDS: Final = (
    "result stores are opened by their URL; set result_backend, docs/results.md lists the URLs"
)
_NO_BACKEND: Final = (
    "there is no such result store; name one that docs/results.md lists in result_backend"
)
_REDIS_BACKEND: Final = (
    "results in Redis come with the release 'Redis'; set result_backend to a URL in docs/results.md"
)
_CONNECTIONS: Final = (
    "programs don't reach the broker beside the app; send with task.delay() or app.send_task(), "
    "many at once with app.batch()"
)
_TRANSPORTS: Final = "brokers are opened by their URL; set broker_url"
_LOOP: Final = "there is no event loop of Kombu's; async tasks are plain `async def` functions"
_WORKER: Final = (
    "the worker is built otherwise; settings, options of tasks and the signals in umbel.signals "
    "change what it does"
)
_REQUEST: Final = (
    "what is made of a message isn't to be replaced; a task's handlers (on_failure, on_retry, …) "
    "and the signals in umbel.signals see how it ends"
)
_POOLS: Final = "choose a pool with worker_pool, or umbel worker --pool"
_COMMANDS: Final = "the command is umbel; start it as a process, umbel --help lists what it does"
_LOADERS: Final = (
    "settings come from app.config_from_object(), modules from include= and "
    "app.autodiscover_tasks()"
)
_DJANGO: Final = "the integration with Django comes with a release of its own"
_TESTING: Final = (
    "tests set task_always_eager, or run `umbel worker` on a broker sqlite:///… in a temporary "
    "folder"
)
_SETTINGS: Final = "app.conf knows all settings; app.conf.describe(name) tells of one"
_ROUTES: Final = "routes are the setting task_routes: a dict, a list of pairs or a function"
_SENDING: Final = "messages are sent with app.send_task(); queues are the setting task_queues"
_DAEMON: Final = (
    "a process manager (systemd, supervisord, a container) starts workers and gives them their "
    "user, limits and log files"
)
_INNER: Final = "it is a part of Celery's inside, and Umbel's is built otherwise"
_STANDARD: Final = "it is a helper of Celery's own; Python's standard library has its like"
_TIME: Final = "use datetime and zoneinfo of Python's standard library"
_EXCEPTION: Final = (
    "nothing raises it here; a broker that is away is an OperationalError, a body that can't be "
    "read a DecodeError"
)
_PICKLED: Final = "exceptions are stored by class and arguments, and restored by result.get()"
_SIGNING: Final = "app.setup_security() signs what an app sends and checks what it gets"
_REPORT: Final = "`umbel -A proj settings` shows an app's settings"
_NODES: Final = "give a worker its name with umbel worker -n"
_COLOURS: Final = "worker_log_color turns the colours of log lines on and off"


def _each(parent: str, names: str, sentence: str) -> Iterator[tuple[str, str]]:
    for name in names.split():
        yield (f"{parent}.{name}" if name != "." else parent), sentence


MODULES: Final[Mapping[str, str]] = dict(
    (
        *_each("celery", "beat schedules", _SCHEDULER),
        *_each("celery", "bootsteps worker", _WORKER),
        *_each("celery", "events", _EVENTS),
        *_each("celery", "loaders", _LOADERS),
        *_each("celery", "bin", _COMMANDS),
        *_each("celery", "concurrency", _POOLS),
        *_each("celery", "backends", _BACKENDS),
        *_each("celery", "fixups", _LOADERS),
        *_each("celery.fixups", "django", _DJANGO),
        *_each("celery.app", "amqp", _SENDING),
        *_each("celery.app", "annotations", "annotations are the setting task_annotations"),
        *_each("celery.app", "autoretry", "retries are options of tasks: autoretry_for=…"),
        *_each("celery.app", "backends", _BACKENDS),
        *_each("celery.app", "builtins trace", _INNER),
        *_each("celery.app", "events", _EVENTS),
        *_each("celery.app", "defaults", _SETTINGS),
        *_each("celery.app", "routes", _ROUTES),
        *_each("celery.apps", ". worker multi", _COMMANDS),
        *_each("celery.apps", "beat", _SCHEDULER),
        *_each(
            "celery.backends",
            "arangodb azureblockblob cassandra consul cosmosdbsql couchbase couchdb dynamodb "
            "elasticsearch gcs mongodb s3",
            _NO_BACKEND,
        ),
        *_each(
            "celery.backends",
            "asynchronous base cache database database.models database.session filesystem",
            _BACKENDS,
        ),
        *_each("celery.security", "certificate key serialization utils", _SIGNING),
        *_each("celery.backends", "redis", _REDIS_BACKEND),
        *_each("celery.backends", "rpc", _RABBITMQ),
        *_each(
            "celery.bin",
            "amqp base beat call celery control events graph list logtool migrate multi purge "
            "result shell upgrade worker",
            _COMMANDS,
        ),
        *_each("celery.concurrency", "asynpool base eventlet gevent prefork solo thread", _POOLS),
        *_each("celery.contrib", ".", "what it has here are its parts, each for itself"),
        *_each(
            "celery.contrib",
            "abortable",
            "revoke with terminate=True ends a running task, and states of one's own "
            "(update_state) can be asked with AsyncResult.state",
        ),
        *_each("celery.contrib", "django django.task", _DJANGO),
        *_each(
            "celery.contrib", "migrate", "workers drain a broker; move its messages before with it"
        ),
        *_each("celery.contrib", "pytest", _TESTING),
        *_each("celery.contrib", "rdb", "set task_always_eager, and use pdb"),
        *_each("celery.contrib", "sphinx", "tasks keep their docstrings; autofunction shows them"),
        *_each("celery.contrib", "testing", _TESTING),
        *_each("celery.contrib.testing", "app manager mocks tasks worker", _TESTING),
        *_each(
            "celery.events",
            "cursesmon dispatcher dumper event receiver snapshot state",
            _EVENTS,
        ),
        *_each("celery.loaders", "app base default", _LOADERS),
        *_each("celery.utils", "abstract annotations quorum_queues timer2", _INNER),
        *_each("celery.utils", "debug deprecated graph static text threads", _STANDARD),
        *_each("celery.utils", "sysinfo", "worker_concurrency is the number of processors, unset"),
        *_each("celery.utils", "term", _COLOURS),
        *_each(
            "celery.worker",
            "autoscale components consumer heartbeat loops state strategy worker",
            _WORKER,
        ),
        *_each("celery.worker", "request", _REQUEST),
        *_each("celery.worker", "control pidbox", _EVENTS),
        *_each(
            "celery.worker.consumer",
            "agent connection consumer control delayed_delivery events gossip heart mingle tasks",
            _WORKER,
        ),
        *_each(
            "kombu",
            "abstract compat connection message mixins pools resource simple",
            _CONNECTIONS,
        ),
        *_each("kombu", "clocks matcher", _INNER),
        *_each("kombu", "pidbox", _EVENTS),
        *_each("kombu", "compression", "task_compression, or compression= of a call, compresses"),
        *_each("kombu", "asynchronous", _LOOP),
        *_each(
            "kombu.asynchronous",
            "aws debug http http.base http.curl hub semaphore timer",
            _LOOP,
        ),
        *_each("kombu", "transport", _TRANSPORTS),
        *_each(
            "kombu.transport",
            "SLMQ SQS azureservicebus azurestoragequeues base confluentkafka consul etcd "
            "filesystem gcpubsub librabbitmq memory mongodb native_delayed_delivery pgmq pyamqp "
            "pyro qpid redis sqlalchemy sqlalchemy.models virtual virtual.base virtual.exchange "
            "zookeeper",
            _TRANSPORTS,
        ),
        *_each(
            "kombu.utils",
            "amq_manager collections compat debug div eventio limits scheduling text time",
            _STANDARD,
        ),
    )
)

NAMES: Final[Mapping[str, str]] = dict(
    (
        *_each("celery", "execute messaging", _SENDING),
        *_each("celery", "log", "use celery.utils.log"),
        *_each("celery", "maybe_patch_concurrency", _POOLS),
        *_each("celery", "registry", "the tasks of an app are app.tasks"),
        *_each("celery._state", "connect_on_app_finalize", "connect to app.on_after_finalize"),
        *_each("celery.app", "AppPickler", "pickle.dumps(app) needs no help"),
        *_each("celery.app.control", "flatten_reply", _EVENTS),
        *_each("celery.app", "disable_trace enable_trace", _INNER),
        *_each("celery.app", "pop_current_task push_current_task", "calling a task does it"),
        *_each(
            "celery.app.log",
            "Logging",
            "connect to the signal setup_logging, or after_setup_logger",
        ),
        *_each("celery.app.utils", "appstr filter_hidden_settings", _REPORT),
        *_each("celery.app.utils", "find_app", "import the app from its module"),
        *_each("celery.app.utils", "sanitize_url", "use kombu.utils.url.sanitize_url"),
        *_each(
            "celery.platforms",
            "DaemonContext LockFailed Pidfile close_open_fds create_pidlock detached fd_by_path "
            "get_fdmax initgroups maybe_drop_privileges parse_gid parse_uid setgid setgroups "
            "setuid",
            _DAEMON,
        ),
        *_each("celery.platforms", "SIGMAP signals", "use signal.Signals"),
        *_each("celery.platforms", "get_errno_name ignore_errno", "catch subclasses of OSError"),
        *_each("celery.platforms", "set_mp_process_title set_process_title", _INNER),
        *_each("celery.result", "ResultBase", _WORKFLOWS),
        *_each(
            "celery.utils.collections",
            "AttributeDictMixin BufferMap ConfigurationView DictAttribute Evictable LimitedSet "
            "Messagebuffer force_mapping lpmerge",
            _STANDARD,
        ),
        *_each(
            "celery.utils.functional",
            "firstmethod head_from_fun mattrgetter mlazy regen",
            _STANDARD,
        ),
        *_each(
            "celery.utils.imports", "NotAPackage find_module module_file reload_from_cwd", _STANDARD
        ),
        *_each("celery.utils.log", "ColorFormatter", _COLOURS),
        *_each(
            "celery.utils.log",
            "LoggingProxy get_multiprocessing_logger in_sighandler reset_multiprocessing_logger "
            "set_in_sighandler",
            _INNER,
        ),
        *_each(
            "celery.utils.nodenames",
            "anon_nodename default_nodename host_format node_format",
            _NODES,
        ),
        *_each("celery.utils.objects", "FallbackContext getitem_property mro_lookup", _STANDARD),
        *_each("celery.utils.saferepr", "reprstream", _INNER),
        *_each(
            "celery.utils.serialization",
            "UnpickleableExceptionWrapper create_exception_cls find_pickleable_exception "
            "get_pickleable_etype get_pickleable_exception get_pickled_exception "
            "subclass_exception",
            _PICKLED,
        ),
        *_each(
            "celery.utils.time",
            "LocalTimezone add_seconds_to_datetime adjust_timestamp delta_resolution ffwd "
            "humanize_seconds remaining subtract_datetimes timezone utcoffset weekday",
            _TIME,
        ),
        *_each("celery.utils.time", "rate", "rate limits come with a release of their own"),
        *_each(
            "kombu",
            "BrokerConnection Connection Consumer Message Producer connections eventloop producers",
            _CONNECTIONS,
        ),
        *_each(
            "kombu",
            "disable_insecure_serializers enable_insecure_serializers",
            "accept_content names the serializers that an app reads",
        ),
        *_each(
            "kombu.common",
            "collect_replies drain_consumer eventloop insured itermessages maybe_declare "
            "send_reply",
            _CONNECTIONS,
        ),
        *_each("kombu.entity", "maybe_delivery_mode", _INNER),
        *_each("kombu.messaging", "Consumer Producer", _CONNECTIONS),
        *_each(
            "kombu.exceptions",
            "BatchPublishError ChannelError ChannelLimitExceeded ConnectionError "
            "ConnectionLimitExceeded HttpError InconsistencyError LimitExceeded MessageStateError "
            "NotBoundError ResourceError VersionMismatch",
            _EXCEPTION,
        ),
        *_each("kombu.exceptions", "SerializationError", "catch EncodeError and DecodeError"),
        *_each("kombu.log", "LogMixin setup_logging", _STANDARD),
        *_each(
            "kombu.utils",
            "EqualityDict emergency_dump_state fileno fxrange fxrangemax maybe_fileno nested "
            "register_after_fork reprcall reprkwargs",
            _STANDARD,
        ),
        *_each("kombu.utils", "retry_over_time", "umbel.retry has policies; see docs/retries.md"),
        *_each(
            "kombu.utils.encoding",
            "default_encoding_file get_default_encoding_file set_default_encoding_file",
            _INNER,
        ),
        *_each(
            "kombu.utils.functional",
            "retry_over_time",
            "umbel.retry has policies; see docs/retries.md",
        ),
        *_each(
            "kombu.utils.json",
            "EncodedT JSONEncoder T object_hook register_type textual_types",
            "annotate the parameters of tasks (docs/tasks.md), or register a serializer",
        ),
        *_each("kombu.utils.url", "parse_ssl_cert_reqs ssl_available", _RABBITMQ),
    )
)
