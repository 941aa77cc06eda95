"""The names of settings as people write them: new, old, or with a namespace before them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Final

from umbel.exceptions import ImproperlyConfigured, UnknownSetting
from umbel.settings_table import CELERY_SETTINGS, UMBEL_SETTINGS, UNDECLARED_CELERY_SETTINGS

BY_OLD_NAME: Final[Mapping[str, str]] = {
    setting.old_name: setting.name for setting in CELERY_SETTINGS if setting.old_name
}
_NAMES: Final = frozenset(
    setting.name for setting in (*CELERY_SETTINGS, *UNDECLARED_CELERY_SETTINGS, *UMBEL_SETTINGS)
)
# What a module has beside settings.
_CODE: Final = (ModuleType, FunctionType, BuiltinFunctionType, type)


def modern(changes: Mapping[str, object], namespace: str = "") -> dict[str, object]:
    """`changes` by new names; unknown names stay as they are, for the error that follows.

    With a `namespace` ``CELERY`` every name is expected as ``CELERY_TASK_ACKS_LATE``, and one
    without it is refused. Raises `ImproperlyConfigured` where old and new names are mixed, since
    one of them was forgotten, and where a setting is given by both.
    """
    prefix = f"{namespace.rstrip('_')}_" if namespace else ""
    found: dict[str, tuple[str, object]] = {}
    new: list[str] = []
    old: list[str] = []
    for name, value in changes.items():
        setting, kind = _setting_of(name, prefix) if isinstance(name, str) else (name, None)
        if kind is not None:
            (old if kind == "old" else new).append(name)
        if setting in found:
            raise ImproperlyConfigured(
                f"setting {setting!r} is given twice, as {found[setting][0]!r} and as {name!r}; "
                "leave one of them out"
            )
        found[setting] = name, value
    if old and new:
        raise _mixed(old, new, prefix)
    return {setting: value for setting, (_, value) in found.items()}


def settings_in(source: object, namespace: str = "") -> dict[str, object]:
    """What of an object's attributes, or of a dict, are settings, by new names.

    All of a dict; of an object, what has the name of a setting, in capitals where it is the old
    one or has a namespace. A name nearly that of a setting is a misspelt one: `UnknownSetting`.
    """
    given = _attributes(source)
    prefix = f"{namespace.rstrip('_')}_" if namespace else ""
    if prefix:
        return modern({n: v for n, v in given.items() if n.upper().startswith(prefix)}, namespace)
    if isinstance(source, Mapping):
        return modern(given)
    known = {n: v for n, v in given.items() if n in _NAMES or n in BY_OLD_NAME}
    for name, value in given.items():
        if name not in known and not isinstance(value, _CODE):
            _refuse_misspelt(name)
    return modern(known)


def _setting_of(name: str, prefix: str) -> tuple[str, str | None]:
    """The setting, and whether its name is ``new`` or ``old``; None where it is both."""
    if prefix:
        plain = name[len(prefix) :].lower() if name.upper().startswith(prefix) else name
        if plain in _NAMES:
            return plain, None if BY_OLD_NAME.get(name) == plain else "new"
    if name in BY_OLD_NAME:
        return BY_OLD_NAME[name], "old"
    return name, "new" if name in _NAMES else None


def _mixed(old: list[str], new: list[str], prefix: str) -> ImproperlyConfigured:
    fixes = []
    for name in old:
        setting = BY_OLD_NAME[name]
        fixes.append(f"{name} is now {prefix + setting.upper() if prefix else setting}")
    return ImproperlyConfigured(
        f"old and new names of settings are mixed: {', '.join(sorted(new)[:3])} is new; "
        f"{'; '.join(sorted(fixes))}. Write all of them in one way"
    )


def _attributes(source: object) -> dict[str, object]:
    if isinstance(source, Mapping):
        return dict(source)
    names: Iterable[str] = (name for name in dir(source) if not name.startswith("_"))
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


def _refuse_misspelt(name: str) -> None:
    known = BY_OLD_NAME if name.isupper() else _NAMES
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
    if near:
        raise UnknownSetting(
            f"setting {name!r} doesn't exist; did you mean {near[0]!r}? What isn't meant as a "
            "setting needs a name less like one, or a leading _"
        )
