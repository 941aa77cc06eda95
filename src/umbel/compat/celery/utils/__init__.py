"""``celery.utils``."""

from umbel.compat.celery.utils.functional import chunks, memoize, noop
from umbel.compat.celery.utils.imports import gen_task_name, import_from_cwd, instantiate
from umbel.compat.celery.utils.imports import qualname as get_full_cls_name
from umbel.compat.celery.utils.imports import symbol_by_name as get_cls_by_name
from umbel.compat.celery.utils.log import LOG_LEVELS
from umbel.compat.celery.utils.nodenames import nodename, nodesplit, worker_direct
from umbel.compat.kombu.utils.objects import cached_property
from umbel.compat.kombu.utils.uuid import uuid
from umbel.compat.missing import guard

__all__ = [
    "LOG_LEVELS",
    "cached_property",
    "chunks",
    "gen_task_name",
    "gen_unique_id",
    "get_cls_by_name",
    "get_full_cls_name",
    "import_from_cwd",
    "instantiate",
    "memoize",
    "nodename",
    "nodesplit",
    "noop",
    "uuid",
    "worker_direct",
]

gen_unique_id = uuid

guard(__name__)
