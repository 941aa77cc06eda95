"""Where an app's settings come from: modules and objects, named and read when first needed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from umbel.exceptions import FixupWarning, ImproperlyConfigured
from umbel.naming import modern, settings_in
from umbel.settings import FROM_DEFAULTS, FROM_OBJECT, Settings, parse_text
from umbel.warning import warn

_LOADERS: Final = {
    "": False,
    "app": False,
    "celery.loaders.app:AppLoader": False,
    "default": True,
    "celery.loaders.default:Loader": True,
}
"""Celery's own loaders, and whether they look for a module ``celeryconfig``."""

Defaults = Mapping[str, object] | Callable[[], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Source:
    """An object, dict, module or its dotted name, that settings are to be read from."""

    given: object
    namespace: str
    silent: bool
    """A module that doesn't exist has no settings."""

    def read(self) -> dict[str, object]:
        """The settings by their names. Raises `ImproperlyConfigured`, and what an import does."""
        found = self.given
        if isinstance(found, str):
            found = self._import(found)
        return {} if found is None else settings_in(found, self.namespace)

    def _import(self, name: str) -> Any:
        try:
            return find_object(name)
        except ImportError as error:
            # Silence is for a module that isn't there, not for one that can't be imported.
            if self.silent and isinstance(error, ModuleNotFoundError) and _is_of(error, name):
                return None
            if isinstance(error, ModuleNotFoundError) and _is_of(error, name):
                raise ImproperlyConfigured(
                    f"config_from_object({name!r}): there is no module {error.name!r} in "
                    f"{os.getcwd()} or among the installed packages"
                ) from error
            raise


class Sources:
    """What an app's settings are still to be read from."""

    def __init__(
        self, conf: Settings, prepare: Callable[[dict[str, Any]], Mapping[str, Any]] = dict
    ) -> None:
        self._conf = conf
        self._prepare = prepare
        """What changes the settings that a source has before they are taken."""
        self._waiting: list[tuple[int, Source | Defaults]] = []

    def add_defaults(self, defaults: Defaults) -> None:
        self._waiting.append((FROM_DEFAULTS, defaults))

    def take(self, source: Source) -> None:
        """Read this one, in place of any that is named before."""
        self._waiting = [each for each in self._waiting if each[0] != FROM_OBJECT]
        self._waiting.append((FROM_OBJECT, source))

    def read(self) -> None:
        """Put into the settings what was named. What it raises, it raises again the next time."""
        # Taken first: what is imported here may look at the settings itself.
        waiting, self._waiting = self._waiting, []
        try:
            for layer, source in waiting:
                if isinstance(source, Source):
                    self._conf.lay(layer, modern(self._prepare(source.read())))
                else:
                    self._conf.lay(layer, modern(_evaluated(source)), anew=False)
        except BaseException:
            self._waiting = waiting
            raise


def find_object(name: str) -> Any:
    """The module ``a.b``, or the object ``a.b:c`` or ``a.b.c`` in a module."""
    module, colon, path = name.partition(":")
    if not colon:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            module, dot, path = name.rpartition(".")
            if not dot or error.name != name:
                raise
            found = importlib.import_module(module)
            if not hasattr(found, path):
                raise
            return getattr(found, path)
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def named_by(variable: str, silent: bool) -> str | None:
    """The module that an environment variable names. Raises `ImproperlyConfigured`."""
    name = os.environ.get(variable)
    if not name and not silent:
        raise ImproperlyConfigured(
            f"the environment variable {variable} isn't set; it should name the module with the "
            f"settings, such as {variable}=proj.settings"
        )
    return name or None


def source_in(environ: Mapping[str, str]) -> Source | None:
    """The module with settings that the environment names, for an app that names none.

    That of ``UMBEL_CONFIG_MODULE`` or ``CELERY_CONFIG_MODULE``; with Celery's default loader
    ``celeryconfig``, if there is one. Warns of any other loader.
    """
    loader = environ.get("CELERY_LOADER", "")
    if loader not in _LOADERS:
        warn(
            f"CELERY_LOADER is {loader!r}, and Umbel has no loaders: settings are read from the "
            "module that config_from_object() or CELERY_CONFIG_MODULE names",
            FixupWarning,
        )
    name = environ.get("UMBEL_CONFIG_MODULE") or environ.get("CELERY_CONFIG_MODULE")
    if name:
        return Source(name, "", silent=False)
    return Source("celeryconfig", "", silent=True) if _LOADERS.get(loader) else None


def from_arguments(arguments: Iterable[str], namespace: str) -> dict[str, object]:
    """Settings that are written ``task.acks_late=true``. Raises `ImproperlyConfigured`."""
    found: dict[str, object] = {}
    for each in arguments:
        name, equals, text = each.partition("=")
        if not equals:
            raise ImproperlyConfigured(
                f"{each!r:.80} is no setting; expected name=value, such as task.acks_late=true"
            )
        name = name.strip().lower().replace(".", "_").lstrip("_").removeprefix(f"{namespace}_")
        found[name] = parse_text(name, text.strip())
    return found


def _evaluated(defaults: Defaults) -> Mapping[str, object]:
    """A dict of defaults, or what the function that makes one gives."""
    return defaults() if callable(defaults) else defaults


def _is_of(error: ModuleNotFoundError, name: str) -> bool:
    """Whether it is the module `name` itself, or a package around it, that doesn't exist."""
    missing = error.name or ""
    module = name.partition(":")[0]
    return module == missing or module.startswith(f"{missing}.")
