"""The table of all settings: Celery's 207, four that it reads without naming, and Umbel's own.

A row is name, default, kind, meaning. What isn't honoured in this release stands under what will
honour it, or has in its row why nothing will.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from umbel.settings_kinds import (
    API,
    BOOL,
    COMPRESSION,
    CONCURRENCY,
    COUNT,
    INT,
    INT_OR_STR,
    LEVEL,
    LIMIT,
    MAPPING,
    NAMES,
    NONEMPTY,
    NUMBER,
    NUMBER_OR_STR,
    OBJECT,
    POOL,
    POSITIVE,
    PRIORITY,
    PRIORITY_ORDER,
    PROTOCOL,
    PUBLISH_POLICY,
    PUBLISH_POLICY_DEFAULT,
    QUEUES,
    ROUTES,
    SECONDS,
    SECONDS_LIMIT,
    SERIALIZER,
    SERIALIZERS,
    SOME_SECONDS,
    STR,
    STR_OR_BYTES,
    SWITCH_OR_MAPPING,
    TIMEZONE,
    URL,
    Kind,
    Setting,
    State,
    optional,
)

EVENTS = "the release that brings events and remote control"
LIMITS = "the release that brings rate limits"
RABBITMQ = "the release that brings RabbitMQ"
REDIS = "the release that brings Redis"
SCHEDULER = "the release that brings the scheduler"
WORKFLOWS = "the release that brings groups and chords"

LOG_FORMAT = "[%(asctime)s: %(levelname)s/%(processName)s] %(message)s"
TASK_LOG_FORMAT = (
    "[%(asctime)s: %(levelname)s/%(processName)s] %(task_name)s[%(task_id)s]: %(message)s"
)

_OLD_PREFIXES = {"beat_": "CELERYBEAT_", "task_": "CELERY_", "worker_": "CELERYD_"}
_OLD_PREFIXED = (
    "arangodb_", "cache_", "couchbase_", "elasticsearch_", "event_", "mongodb_", "redis_",
    "result_", "security_",
)  # fmt: skip
_OLD_NAMES = {
    "accept_content": "CELERY_ACCEPT_CONTENT",
    "result_accept_content": "RESULT_ACCEPT_CONTENT",
    "imports": "CELERY_IMPORTS",
    "include": "CELERY_INCLUDE",
    "timezone": "CELERY_TIMEZONE",
    "result_cache_max": "CELERY_MAX_CACHED_RESULTS",
    "result_expires": "CELERY_TASK_RESULT_EXPIRES",
    "database_url": "CELERY_RESULT_DBURI",
    "database_engine_options": "CELERY_RESULT_ENGINE_OPTIONS",
    "database_short_lived_sessions": "CELERY_RESULT_DB_SHORT_LIVED_SESSIONS",
    "database_table_names": "CELERY_RESULT_DB_TABLENAMES",
    "task_compression": "CELERY_MESSAGE_COMPRESSION",
    "task_eager_propagates": "CELERY_EAGER_PROPAGATES_EXCEPTIONS",
    "task_protocol": "CELERY_TASK_PROTOCOL",
    "task_publish_retry": "CELERY_TASK_PUBLISH_RETRY",
    "task_publish_retry_policy": "CELERY_TASK_PUBLISH_RETRY_POLICY",
    "task_send_sent_event": "CELERY_SEND_TASK_SENT_EVENT",
    "task_serializer": "CELERY_TASK_SERIALIZER",
    "task_soft_time_limit": "CELERYD_TASK_SOFT_TIME_LIMIT",
    "task_time_limit": "CELERYD_TASK_TIME_LIMIT",
    "worker_direct": "CELERY_WORKER_DIRECT",
    "worker_disable_rate_limits": "CELERY_DISABLE_RATE_LIMITS",
    "worker_enable_remote_control": "CELERY_ENABLE_REMOTE_CONTROL",
    "worker_lost_wait": "CELERYD_WORKER_LOST_WAIT",
    "worker_redirect_stdouts": "CELERY_REDIRECT_STDOUTS",
    "worker_redirect_stdouts_level": "CELERY_REDIRECT_STDOUTS_LEVEL",
    "worker_send_task_events": "CELERY_SEND_EVENTS",
}


def _old_name(name: str) -> str:
    """The upper-case name of Celery 3: by prefix, where it isn't one of the odd ones."""
    if name in _OLD_NAMES:
        return _OLD_NAMES[name]
    for prefix, old_prefix in _OLD_PREFIXES.items():
        if name.startswith(prefix):
            return old_prefix + name.removeprefix(prefix).upper()
    return ("CELERY_" if name.startswith(_OLD_PREFIXED) else "") + name.upper()


_Row = tuple[str, object, Kind, str]
_RowWithReason = tuple[str, object, Kind, str, str]


def _honoured(*rows: _Row) -> Iterator[Setting]:
    for name, default, kind, meaning in rows:
        yield Setting(name, default, kind, _old_name(name), meaning, State.HONOURED, "")


def _later(release: str, *rows: _Row) -> Iterator[Setting]:
    sentence = f"it is honoured by {release}"
    for name, default, kind, meaning in rows:
        yield Setting(name, default, kind, _old_name(name), meaning, State.LATER, sentence)


def _refused_until(release: str, *rows: _RowWithReason) -> Iterator[Setting]:
    for name, default, kind, meaning, reason in rows:
        sentence = f"{reason}; it is honoured by {release}"
        yield Setting(name, default, kind, _old_name(name), meaning, State.LATER, sentence, True)


def _never(*rows: _RowWithReason) -> Iterator[Setting]:
    for name, default, kind, meaning, reason in rows:
        yield Setting(name, default, kind, _old_name(name), meaning, State.NEVER, reason)


def _refused_for_ever(*rows: _RowWithReason) -> Iterator[Setting]:
    for name, default, kind, meaning, reason in rows:
        yield Setting(name, default, kind, _old_name(name), meaning, State.NEVER, reason, True)


def _no_store(product: str, *rows: _Row) -> Iterator[Setting]:
    sentence = f"no result store on {product} is planned; use SQLAlchemy (db+…) or Redis"
    for name, default, kind, meaning in rows:
        yield Setting(name, default, kind, _old_name(name), meaning, State.NEVER, sentence)


# fmt: off
CELERY_SETTINGS: tuple[Setting, ...] = (
    *_honoured(
        ("accept_content", ("json",), SERIALIZERS,
         "names of the serializers whose messages are accepted"),
        ("enable_utc", True, BOOL, "write times in UTC; off and no timezone: the host's zone"),
        ("imports", (), NAMES, "modules that a worker imports when it starts"),
        ("include", (), NAMES, "further modules to import, as the app's include="),
        ("timezone", None, TIMEZONE,
         "zone of naive times; None: UTC, or the host's with enable_utc off"),
        ("broker_url", None, URL, "where messages are kept; None: sqlite:///umbel.db"),
        ("result_backend", None, URL,
         "where states and return values are kept; None: with the messages of an embedded broker"),
        ("result_expires", 86_400.0, SECONDS_LIMIT, "age at which a stored result goes"),
        ("result_failure_expires", None, optional(SECONDS),
         "age at which a stored failure goes; None: as results"),
        ("result_extended", False, BOOL,
         "store the task's name, arguments, worker, retries and queue with its result"),
        ("result_serializer", "json", SERIALIZER, "serializer of stored results"),
        ("result_accept_content", None, optional(SERIALIZERS),
         "serializers accepted in stored results; None: as accept_content, and JSON"),
        ("result_compression", None, optional(COMPRESSION), "compression of stored results"),
        ("security_certificate", None, optional(STR), "file with the certificate for signing"),
        ("security_cert_store", None, optional(STR),
         "where trusted certificates lie: a folder of *.pem files, or a glob of files"),
        ("security_key", None, optional(STR), "file with the private key"),
        ("security_key_password", None, optional(STR_OR_BYTES), "password of the private key"),
        ("security_digest", "sha256", STR, "digest that is signed"),
        ("task_acks_late", False, BOOL, "settle a message after its execution, not before it"),
        ("task_acks_on_failure_or_timeout", True, BOOL,
         "what the next two mean where they are None"),
        ("task_acks_on_failure", None, optional(BOOL),
         "a late task that failed is acknowledged, not rejected"),
        ("task_acks_on_timeout", None, optional(BOOL),
         "a late task that met its hard limit is acknowledged, not requeued"),
        ("task_annotations", None, OBJECT, "changes to tasks' options and handlers, by task name"),
        ("task_always_eager", False, BOOL,
         "run tasks in the caller instead of sending them; for tests"),
        ("task_eager_propagates", False, BOOL, "a task run in the caller raises there"),
        ("task_store_eager_result", False, BOOL, "store results of tasks run in the caller"),
        ("task_create_missing_queues", True, BOOL,
         "a queue that nobody declared comes to be when it is named"),
        ("task_default_queue", "celery", NONEMPTY, "queue of what no route sends elsewhere"),
        ("task_default_exchange", None, optional(STR),
         "exchange of that queue; None: the queue's name"),
        ("task_default_routing_key", None, optional(STR),
         "routing key of that queue; None: the queue's name"),
        ("task_default_priority", None, optional(PRIORITY),
         "priority of messages sent without one"),
        ("task_ignore_result", False, BOOL, "do not store return values"),
        ("task_protocol", 2, PROTOCOL, "version of the message format"),
        ("task_publish_retry", True, BOOL, "send again when the broker is away"),
        ("task_publish_retry_policy", PUBLISH_POLICY_DEFAULT, PUBLISH_POLICY,
         "how often and after which pauses sending is repeated"),
        ("task_queues", None, QUEUES, "the queues that exist; None: the default queue"),
        ("task_reject_on_worker_lost", None, optional(BOOL),
         "a late task whose process died is delivered again"),
        ("task_retry_on_worker_lost", False, BOOL, "a task whose process died is retried"),
        ("task_repr_maxlevels", 3, COUNT,
         "depth to which arguments are shown in messages and logs"),
        ("task_routes", None, ROUTES, "where tasks go, by task name or glob"),
        ("task_serializer", "json", SERIALIZER, "serializer of messages"),
        ("task_compression", None, optional(COMPRESSION), "compression of messages"),
        ("task_soft_time_limit", None, SECONDS_LIMIT,
         "run time after which SoftTimeLimitExceeded is raised in the task"),
        ("task_time_limit", None, SECONDS_LIMIT,
         "run time after which the task's process is ended"),
        ("task_store_errors_even_if_ignored", False, BOOL,
         "store failures although task_ignore_result is on"),
        ("task_track_started", False, BOOL, "store the state STARTED"),
        ("worker_soft_shutdown_timeout", 0.0, SECONDS,
         "time that running tasks get before a cold stop"),
        ("worker_enable_soft_shutdown_on_idle", False, BOOL, "give that time even if nothing runs"),
        ("worker_concurrency", None, CONCURRENCY,
         "number of pool processes; None: the processors it may use"),
        ("worker_deduplicate_successful_tasks", False, BOOL,
         "don't run a redelivered late task again that has succeeded"),
        ("worker_hijack_root_logger", True, BOOL, "set up logging anew, unless the app did"),
        ("worker_log_color", None, optional(BOOL), "colours in the log; None: on a terminal"),
        ("worker_log_datefmt", None, optional(STR), "format of times in the log"),
        ("worker_log_format", LOG_FORMAT, STR, "format of log lines"),
        ("worker_max_tasks_per_child", None, LIMIT, "tasks after which a process is replaced"),
        ("worker_pool", "prefork", POOL, "what tasks run in"),
        ("worker_proc_alive_timeout", 4.0, SOME_SECONDS, "longest start of a pool process"),
        ("worker_prefetch_multiplier", None, optional(COUNT),
         "messages reserved per process; None: by time, 0: no limit"),
        ("worker_redirect_stdouts", True, BOOL, "what tasks print goes to the log"),
        ("worker_redirect_stdouts_level", "WARNING", LEVEL, "level at which it does"),
        ("worker_task_log_datefmt", None, optional(STR), "format of times in tasks' log lines"),
        ("worker_task_log_format", TASK_LOG_FORMAT, STR, "format of tasks' log lines"),
    ),
    *_later(API,
        ("result_cache_max", -1, INT, "results that a client remembers; -1: none, 0: all"),
        ("result_backend_max_sleep_between_retries_ms", 10000, COUNT,
         "longest pause between attempts to reach the store, in ms"),
        ("result_backend_max_retries", inf, NUMBER, "attempts to reach the store"),
        ("result_backend_base_sleep_between_retries_ms", 10, COUNT,
         "first pause between attempts to reach the store, in ms"),
        ("result_backend_always_retry", False, BOOL, "try again when the store is away"),
        ("task_inherit_parent_priority", False, BOOL,
         "a task sent by a task takes over its priority"),
        ("task_default_exchange_type", "direct", STR, "type of that exchange"),
        ("worker_direct", False, BOOL, "each worker has a queue of its own"),
        ("worker_max_memory_per_child", None, optional(COUNT),
         "resident KiB after which a process is replaced"),
        ("worker_pool_start_method", "fork", STR, "how processes are started: fork or spawn"),
    ),
    *_later(SCHEDULER,
        ("beat_enable_remote_control", False, BOOL, "let the scheduler answer ping"),
        ("beat_remote_control_max_tick_age", None, optional(SECONDS),
         "age of the last tick after which the scheduler stops answering"),
        ("beat_max_loop_interval", 0.0, SECONDS,
         "longest sleep of the scheduler; 0: its own choice"),
        ("beat_schedule", {}, MAPPING, "periodic tasks by name"),
        ("beat_scheduler", "celery.beat:PersistentScheduler", OBJECT, "class of the scheduler"),
        ("beat_schedule_filename", "celerybeat-schedule", STR,
         "file in which the scheduler keeps its state"),
        ("beat_sync_every", 0, COUNT, "sent tasks after which the state is written; 0: by time"),
        ("beat_cron_starting_deadline", None, optional(SECONDS),
         "lateness beyond which a missed crontab run is skipped"),
    ),
    *_later(REDIS,
        ("broker_transport_options", {}, MAPPING, "options of the broker's driver"),
        ("broker_connection_timeout", 4.0, optional(SECONDS),
         "longest wait for a connection to the broker"),
        ("broker_connection_retry", True, BOOL, "connect again after a lost connection"),
        ("broker_connection_retry_on_startup", None, optional(BOOL),
         "try the first connection more than once"),
        ("broker_connection_max_retries", 100, optional(COUNT),
         "attempts to connect before giving up; None or 0: no end"),
        ("broker_failover_strategy", None, OBJECT, "order in which alternative brokers are tried"),
        ("broker_pool_limit", 10, optional(COUNT), "most connections kept open to the broker"),
        ("broker_pool_acquire_timeout", None, optional(SECONDS),
         "longest wait for a free connection"),
        ("broker_use_ssl", False, SWITCH_OR_MAPPING,
         "encrypt the connection; a dict has the details"),
        ("redis_backend_use_ssl", None, optional(SWITCH_OR_MAPPING),
         "encrypt the connection to the result store"),
        ("redis_db", None, optional(INT_OR_STR), "database number, where the URL has none"),
        ("redis_host", None, optional(STR), "host, where the URL has none"),
        ("redis_max_connections", None, optional(COUNT), "most connections to the result store"),
        ("redis_username", None, optional(STR), "user, where the URL has none"),
        ("redis_password", None, optional(STR), "password, where the URL has none"),
        ("redis_port", None, optional(INT_OR_STR), "port, where the URL has none"),
        ("redis_socket_timeout", 120.0, optional(SECONDS), "longest wait for an answer"),
        ("redis_socket_connect_timeout", None, optional(SECONDS), "longest wait for a connection"),
        ("redis_retry_on_timeout", False, BOOL, "ask again after a timeout"),
        ("redis_socket_keepalive", False, BOOL, "keep idle connections alive"),
        ("result_backend_transport_options", {}, MAPPING, "options of the result store's driver"),
    ),
    *_later(RABBITMQ,
        ("broker_channel_error_retry", False, BOOL,
         "consume again after an error of the channel alone"),
        ("broker_heartbeat", 120.0, optional(SECONDS), "interval of AMQP heartbeats"),
        ("broker_heartbeat_checkrate", 3.0, NUMBER, "checks per AMQP heartbeat interval"),
        ("broker_login_method", None, optional(STR), "AMQP login method"),
        ("broker_native_delayed_delivery_queue_type", "quorum", STR,
         "kind of the queues that hold delayed messages"),
        ("result_exchange", "celeryresults", STR, "exchange that results are sent through"),
        ("result_exchange_type", "direct", STR, "type of that exchange"),
        ("result_persistent", None, optional(BOOL),
         "results sent as messages survive a restart of the server"),
        ("task_create_missing_queue_type", "classic", STR,
         "kind of such a queue: classic or quorum"),
        ("task_create_missing_queue_exchange_type", None, optional(STR),
         "type of such a queue's exchange"),
        ("task_default_delivery_mode", 2, INT_OR_STR,
         "2: messages survive a restart of the server; 1: not"),
        ("task_default_queue_type", "classic", STR, "kind of that queue: classic or quorum"),
        ("task_queue_max_priority", None, optional(COUNT),
         "highest priority that queues are declared with"),
        ("worker_detect_quorum_queues", True, BOOL, "treat quorum queues as they need"),
    ),
    *_honoured(
        ("cache_backend_options", {}, MAPPING,
         "options of pymemcache's client, such as timeout in seconds"),
        ("database_engine_options", {"pool_pre_ping": True, "pool_recycle": 3600}, MAPPING,
         "arguments of SQLAlchemy's create_engine"),
        ("database_engine_callback", None, OBJECT,
         "function, or its dotted name, called with the new engine"),
        ("database_short_lived_sessions", False, BOOL, "a new connection for each operation"),
        ("database_table_schemas", None, optional(MAPPING),
         "schemas of the tables for tasks and groups"),
        ("database_table_names", None, optional(MAPPING),
         "names of the tables for tasks and groups"),
        ("database_create_tables_at_setup", True, BOOL, "create the tables on opening the store"),
    ),
    *_later(EVENTS,
        ("control_queue_ttl", 300.0, optional(SECONDS), "lifetime of a control message"),
        ("control_queue_expires", 10.0, optional(SECONDS),
         "idle time after which a control queue goes"),
        ("control_queue_exclusive", True, BOOL, "control queues belong to one connection"),
        ("control_queue_durable", False, BOOL, "control queues survive a restart of the server"),
        ("control_exchange", "celery", STR, "name that control exchanges are built from"),
        ("event_queue_expires", 60.0, optional(SECONDS),
         "idle time after which an event queue goes"),
        ("event_queue_ttl", 5.0, optional(SECONDS), "lifetime of an event in its queue"),
        ("event_queue_prefix", "celeryev", STR, "what names of event queues begin with"),
        ("event_queue_exclusive", True, BOOL, "event queues belong to one connection"),
        ("event_queue_durable", False, BOOL, "event queues survive a restart of the server"),
        ("event_serializer", "json", STR, "serializer of events"),
        ("event_exchange", "celeryev", STR, "exchange that events go to"),
        ("task_send_sent_event", False, BOOL, "senders tell of each message"),
        ("worker_enable_remote_control", True, BOOL, "obey control commands"),
        ("worker_pool_restarts", False, BOOL, "obey the command that restarts the pool"),
        ("worker_send_task_events", False, BOOL, "tell of each step of a task"),
    ),
    *_later(LIMITS,
        ("task_default_rate_limit", None, optional(NUMBER_OR_STR), "runs per time of each task"),
        ("worker_disable_rate_limits", False, BOOL, "run without regard to rate limits"),
    ),
    *_later(WORKFLOWS,
        ("result_chord_expires", None, optional(SECONDS),
         "age at which a chord's bookkeeping goes; None: as results"),
        ("result_chord_join_timeout", 3.0, optional(SECONDS),
         "longest wait for the results of a chord's parts"),
        ("task_allow_error_cb_on_chord_header", False, BOOL,
         "a chord's error callback is called for its parts too"),
    ),
    *_refused_until(API,
        ("broker_read_url", None, optional(STR),
         "another URL for workers", "tasks would be read from broker_url instead"),
        ("broker_write_url", None, optional(STR),
         "another URL for senders", "tasks would be sent to broker_url instead"),
    ),
    *_never(
        ("cache_backend", None, optional(STR),
         "URL of the cache that keeps results", "write the cache's URL as result_backend"),
        ("result_chord_retry_interval", 1.0, SECONDS,
         "pause between two looks at a chord's parts",
         "a chord is completed by its last part, nothing polls"),
        ("database_url", None, optional(STR),
         "database that keeps results",
         "write the database's URL as result_backend, with db+ before it"),
        ("task_remote_tracebacks", False, BOOL,
         "rebuild traceback objects", "tracebacks travel as text, AsyncResult.traceback has it"),
        ("worker_agent", None, OBJECT, "class of the worker's agent", "the worker has no agent"),
        ("worker_autoscaler", "celery.worker.autoscale:Autoscaler", OBJECT,
         "class that changes the number of processes", "the worker's parts can't be replaced"),
        ("worker_cancel_long_running_tasks_on_connection_loss", False, BOOL,
         "end late tasks when the broker is away",
         "a lost connection doesn't end a task's lease, so running on is safe"),
        ("worker_consumer", "celery.worker.consumer:Consumer", OBJECT,
         "class of the consumer", "the worker's parts can't be replaced"),
        ("worker_lost_wait", 10.0, SECONDS,
         "wait before a task is given up with its process",
         "the death of a process is noticed at once, there is nothing to wait for"),
        ("worker_pool_putlocks", True, BOOL,
         "guard the hand-over to processes",
         "no message is put to a process, each fetches for itself"),
        ("worker_eta_task_limit", None, optional(COUNT),
         "most delayed tasks in a worker", "delayed tasks wait in the broker, not in the worker"),
        ("worker_enable_prefetch_count_reduction", True, BOOL,
         "reserve less after a lost connection",
         "leases outlive a lost connection, so nothing is reserved twice"),
        ("worker_disable_prefetch", False, BOOL,
         "reserve only what can run at once",
         "a process that runs a long task gives back what else it holds"),
        ("worker_state_db", None, optional(STR),
         "file for revoked ids", "the broker keeps revocations, so they survive restarts"),
        ("worker_timer", None, OBJECT,
         "class of the timer", "the worker's parts can't be replaced"),
        ("worker_timer_precision", 1.0, SECONDS,
         "resolution of the timer", "the worker keeps no timers for tasks"),
    ),
    *_refused_for_ever(
        ("broker_transport", None, optional(STR),
         "kind of broker, beside the URL",
         "the scheme of broker_url names the kind of broker, and tasks would go to another one"),
        ("broker_host", None, optional(STR),
         "host of the broker, beside the URL",
         "broker_url alone names the broker, and tasks would go to another one"),
        ("broker_port", None, optional(INT_OR_STR),
         "port of the broker, beside the URL",
         "broker_url alone names the broker, and tasks would go to another one"),
        ("broker_user", None, optional(STR),
         "user at the broker, beside the URL",
         "broker_url alone names the broker, and tasks would go to another one"),
        ("broker_password", None, optional(STR),
         "password at the broker, beside the URL",
         "broker_url alone names the broker, and tasks would go to another one"),
        ("broker_vhost", None, optional(STR),
         "virtual host, beside the URL",
         "broker_url alone names the broker, and tasks would go to another one"),
    ),
    *_no_store("Cassandra",
        ("cassandra_entry_ttl", None, optional(SECONDS), "lifetime of a row"),
        ("cassandra_keyspace", None, optional(STR), "keyspace"),
        ("cassandra_port", None, optional(INT_OR_STR), "port"),
        ("cassandra_read_consistency", None, optional(STR), "consistency of reads"),
        ("cassandra_servers", None, optional(NAMES), "hosts"),
        ("cassandra_bundle_path", None, optional(STR), "file with the secure connection bundle"),
        ("cassandra_table", None, optional(STR), "table"),
        ("cassandra_write_consistency", None, optional(STR), "consistency of writes"),
        ("cassandra_auth_provider", None, optional(STR), "class that logs in"),
        ("cassandra_auth_kwargs", None, optional(MAPPING), "arguments of that class"),
        ("cassandra_options", {}, MAPPING, "further arguments of the client"),
    ),
    *_no_store("S3",
        ("s3_access_key_id", None, optional(STR), "id of the access key"),
        ("s3_secret_access_key", None, optional(STR), "the access key's secret"),
        ("s3_bucket", None, optional(STR), "bucket"),
        ("s3_base_path", None, optional(STR), "what object names begin with"),
        ("s3_endpoint_url", None, optional(STR), "address of another S3 server"),
        ("s3_region", None, optional(STR), "region"),
    ),
    *_no_store("Azure",
        ("azureblockblob_container_name", "celery", STR, "container"),
        ("azureblockblob_retry_initial_backoff_sec", 2.0, SECONDS, "first wait between attempts"),
        ("azureblockblob_retry_increment_base", 2, NUMBER, "growth of the waits"),
        ("azureblockblob_retry_max_attempts", 3, COUNT, "most attempts"),
        ("azureblockblob_base_path", "", STR, "what blob names begin with"),
        ("azureblockblob_connection_timeout", 20.0, SECONDS, "longest wait for a connection"),
        ("azureblockblob_read_timeout", 120.0, SECONDS, "longest wait for an answer"),
    ),
    *_no_store("Google Cloud Storage",
        ("gcs_bucket", None, optional(STR), "bucket"),
        ("gcs_project", None, optional(STR), "project"),
        ("gcs_base_path", "", optional(STR), "what blob names begin with"),
        ("gcs_ttl", 0.0, SECONDS, "lifetime of a blob; 0: for ever"),
    ),
    *_no_store("Couchbase",
        ("couchbase_backend_settings", None, optional(MAPPING), "connection"),
    ),
    *_no_store("ArangoDB",
        ("arangodb_backend_settings", None, optional(MAPPING), "connection"),
    ),
    *_no_store("MongoDB",
        ("mongodb_backend_settings", None, optional(MAPPING), "connection"),
    ),
    *_no_store("Cosmos DB",
        ("cosmosdbsql_database_name", "celerydb", STR, "database"),
        ("cosmosdbsql_collection_name", "celerycol", STR, "collection"),
        ("cosmosdbsql_consistency_level", "Session", STR, "consistency"),
        ("cosmosdbsql_max_retry_attempts", 9, COUNT, "most attempts"),
        ("cosmosdbsql_max_retry_wait_time", 30.0, SECONDS, "longest wait between attempts"),
    ),
    *_no_store("Elasticsearch",
        ("elasticsearch_retry_on_timeout", None, optional(BOOL), "ask again after a timeout"),
        ("elasticsearch_max_retries", None, optional(COUNT), "most attempts"),
        ("elasticsearch_timeout", None, optional(SECONDS), "longest wait for an answer"),
        ("elasticsearch_save_meta_as_text", True, BOOL, "store results as text"),
    ),
)
# fmt: on

UNDECLARED_CELERY_SETTINGS: tuple[Setting, ...] = tuple(
    _later(
        REDIS,
        (
            "redis_backend_health_check_interval",
            None,
            optional(SECONDS),
            "idle time after which a connection is checked",
        ),
        ("redis_backend_credential_provider", None, OBJECT, "gives user and password"),
        ("redis_client_name", None, optional(STR), "name of our connections at the server"),
        ("result_backend_thread_safe", False, BOOL, "threads share one result store"),
    )
)
"""What Celery reads from its configuration without declaring it."""


def _own(*rows: _Row) -> Iterator[Setting]:
    for name, default, kind, meaning in rows:
        yield Setting(name, default, kind, None, meaning, State.HONOURED, "")


# fmt: off
UMBEL_SETTINGS: tuple[Setting, ...] = (
    *_own(
        ("worker_lease_time", 30.0, SOME_SECONDS,
         "how long a worker's leases outlive its last sign of life"),
        ("task_max_redeliveries", 3, COUNT, "counted redeliveries after which a task is given up"),
        ("task_dead_letters", True, BOOL, "keep the messages of what finally failed"),
        ("dead_letters_max_count", 10_000, POSITIVE, "dead letters kept per queue"),
        ("dead_letters_max_age", 14 * 86_400.0, SOME_SECONDS, "age at which a dead letter goes"),
        ("dead_letters_max_bytes", 64 * 2**20, POSITIVE, "bytes of dead letters kept per queue"),
        ("result_keep", None, optional(COUNT),
         "successes kept in the result store, the newest; None: all that haven't expired"),
        ("task_unknown_wait", 300.0, SECONDS,
         "how long a message with an unknown task name waits for a worker that knows it"),
        ("task_max_message_size", 16 * 2**20, POSITIVE, "most bytes of an encoded message"),
        ("task_eta_in_broker", True, BOOL,
         "what is due later waits in the broker; off: it travels as Celery's"),
        ("worker_log_json", False, BOOL, "log lines are JSON objects, whatever the format says"),
    ),
    Setting(
        "redis_priority_order", "high-first", PRIORITY_ORDER, None,
        "which priority comes first on Redis; Celery's order there is low-first",
        State.LATER, f"it is honoured by {REDIS}",
    ),
)
# fmt: on
