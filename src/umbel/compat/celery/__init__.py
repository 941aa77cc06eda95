"""``celery``: Umbel under Celery's name.

::

    from umbel.compat.celery import Celery          # in a new import
    umbel.compat.celery.install()                   # or: `import celery` means this, from here on

or, without a line changed, ``umbel --as-celery -A proj worker`` and
``python -m umbel.compat.celery SCRIPT``.
"""

from typing import Final, NamedTuple

from umbel.canvas import Signature, chain, chord, chunks, group, signature, xmap, xstarmap
from umbel.compat.alias import install, uninstall
from umbel.compat.celery import exceptions, local, result, signals, states
from umbel.compat.celery.app import Celery, bugreport
from umbel.compat.celery.canvas import maybe_signature, subtask
from umbel.compat.celery.utils import uuid
from umbel.compat.missing import guard
from umbel.current import current_app, current_task
from umbel.shared import shared_task
from umbel.task import Task

__all__ = [
    "SERIES",
    "VERSION",
    "VERSION_BANNER",
    "Celery",
    "Signature",
    "Task",
    "__version__",
    "bugreport",
    "chain",
    "chord",
    "chunks",
    "current_app",
    "current_task",
    "exceptions",
    "group",
    "install",
    "local",
    "maybe_signature",
    "result",
    "shared_task",
    "signals",
    "signature",
    "states",
    "subtask",
    "uninstall",
    "uuid",
    "version_info",
    "version_info_t",
    "xmap",
    "xstarmap",
]


class version_info_t(NamedTuple):
    """A version in its parts."""

    major: int
    minor: int
    micro: int
    releaselevel: str
    serial: str


VERSION: Final = version_info_t(5, 7, 0, "", "")
"""That of the Celery whose API this is; Umbel's own is `umbel.__version__`."""
version_info: Final = VERSION
__version__: Final = "5.7.0"
SERIES: Final = "collider"
VERSION_BANNER: Final = f"{__version__} ({SERIES})"

guard(__name__)
