"""What the settings say of connections to Redis: for messages and for results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from umbel.exceptions import ImproperlyConfigured
from umbel.redisurl import BROKER_TIMEOUTS, Cluster, Servers, servers_of, tagged
from umbel.settings import Settings
from umbel.urls import store_url

if TYPE_CHECKING:
    from umbel.brokers.redis import Keys, Pool

_OF_A_CONNECTION: Final = (
    "client_name",
    "credential_provider",
    "health_check_interval",
    "password",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_keepalive_options",
    "socket_timeout",
    "username",
)
_OF_SENTINELS: Final = ("master_name", "min_other_sentinels", "sentinel_kwargs")
_OF_KEYS: Final = (
    "fanout_patterns",
    "fanout_prefix",
    "global_keyprefix",
    "priority_steps",
    "sep",
)
_OF_RESULTS: Final = ("global_keyprefix",)
_OF_CELERY: Final = ("visibility_timeout", "unacked_key", "unacked_index_key", "unacked_mutex_key")
_OF_MESSAGES: Final = (*_OF_KEYS, *_OF_CELERY, *_OF_A_CONNECTION, "wait_replicas")
BROKER_OPTIONS: Final[Mapping[str, Sequence[str]]] = {
    "redis": _OF_MESSAGES,
    "rediss": _OF_MESSAGES,
    "unix": _OF_MESSAGES,
    "sentinel": (*_OF_MESSAGES, *_OF_SENTINELS),
}
STORE_OPTIONS: Final[Mapping[str, Sequence[str]]] = {
    "redis": _OF_RESULTS,
    "rediss": _OF_RESULTS,
    "unix": _OF_RESULTS,
    "sentinel": (*_OF_RESULTS, *_OF_SENTINELS),
}
"""What `broker_transport_options` and `result_backend_transport_options` can have, by scheme."""


def broker_servers(url: str, conf: Settings) -> Servers:
    """Where messages are. Raises `ImproperlyConfigured`."""
    transport = conf.broker_transport_options
    said = {name: transport[name] for name in _OF_A_CONNECTION if name in transport}
    if "credential_provider" in said:
        said["credential_provider"] = _made(said["credential_provider"])
    if conf.value_set_for("broker_connection_timeout"):
        said = {"socket_connect_timeout": conf.broker_connection_timeout, **said}
    defaults = {**BROKER_TIMEOUTS, "tls": _tls(conf.broker_use_ssl), **said}
    return servers_of("broker_url", url, defaults, transport, conf.broker_failover_strategy)


def broker_pool(conf: Settings) -> Pool:
    """How many connections to it there are."""
    from umbel.brokers.redis import Pool

    return Pool(
        limit=conf.broker_pool_limit or None,
        patience=conf.broker_pool_acquire_timeout,
        keeps=bool(conf.broker_pool_limit),
    )


def broker_replicas(conf: Settings) -> int:
    """How many replicas must have what is stored. Raises `ImproperlyConfigured`."""
    replicas = conf.broker_transport_options.get("wait_replicas", 0)
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 0:
        raise ImproperlyConfigured(
            f"broker_transport_options has wait_replicas={replicas!r}; expected a whole number "
            "from 0: how many replicas must have a message before delay() returns"
        )
    return replicas


def broker_keys(conf: Settings, servers: Servers) -> Keys:
    """The names of its keys. Raises `ImproperlyConfigured`."""
    from umbel.brokers.redis import Keys

    low_first = conf.redis_priority_order == "low-first"
    keys = Keys.of(conf.broker_transport_options, low_first=low_first)
    if isinstance(servers, Cluster):
        return replace(keys, prefix=tagged("broker_url", keys.prefix))
    return keys


def store_servers(url: str, conf: Settings) -> Servers:
    """Where results are. What isn't said of them is as the broker has it where that keeps them, and
    as for Sentinels everywhere. Raises `ImproperlyConfigured`."""
    tls = conf.redis_backend_use_ssl
    if store_url(conf) is None and tls is None:
        tls = conf.broker_use_ssl
    defaults = {
        "host": conf.redis_host,
        "port": conf.redis_port,
        "db": conf.redis_db,
        "username": conf.redis_username,
        "password": conf.redis_password,
        "tls": _tls(tls),
        "max_connections": conf.redis_max_connections or None,
        "client_name": conf.redis_client_name,
        "credential_provider": _made(conf.redis_backend_credential_provider),
        "health_check_interval": conf.redis_backend_health_check_interval,
        "retry_on_timeout": conf.redis_retry_on_timeout,
        "socket_connect_timeout": conf.redis_socket_connect_timeout,
        "socket_keepalive": conf.redis_socket_keepalive,
        "socket_timeout": conf.redis_socket_timeout,
    }
    of_the_broker = conf.broker_transport_options
    transport = {name: of_the_broker[name] for name in _OF_SENTINELS if name in of_the_broker}
    transport.update(conf.result_backend_transport_options)
    return servers_of("result_backend", url, defaults, transport)


def _tls(setting: object) -> object:
    """Of a setting `…_use_ssl`: the options of TLS; None is without."""
    return {} if setting is True else setting or None


def _made(provider: object) -> object:
    """Of `redis_backend_credential_provider`: the object, its class, or where it is found."""
    if isinstance(provider, str):
        from umbel.configure import find_object

        provider = find_object(provider)
    return provider() if isinstance(provider, type) else provider
