"""Find the modules with tasks in a project's packages."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from umbel.exceptions import ImproperlyConfigured
from umbel.saferepr import safe_repr

Packages = Iterable[str] | Callable[[], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Discovery:
    """The packages in which each has its tasks in the module `related_name`."""

    packages: Packages
    related_name: str | None
    """None: in the package itself."""

    @classmethod
    def of(cls, packages: Packages | None, related_name: str | None) -> Discovery:
        """Raises `ImproperlyConfigured` where no packages are named."""
        if packages is None:
            raise ImproperlyConfigured(
                "autodiscover_tasks() names no packages; give it a list of them, or a function "
                "that returns one: app.autodiscover_tasks(['proj.mail', 'proj.shop'])"
            )
        if not (related_name is None or isinstance(related_name, str)):
            raise ImproperlyConfigured(
                f"autodiscover_tasks() got related_name={safe_repr(related_name, 80)}; expected "
                "the name of a module, such as 'tasks', or None"
            )
        return cls(packages if callable(packages) else _names_in(packages), related_name)

    def load(self) -> None:
        """Import them. A package may have no such module; what its code raises is raised."""
        for package in _names_in(self.packages() if callable(self.packages) else self.packages):
            importlib.import_module(package)
            name = f"{package}.{self.related_name}"
            if self.related_name and importlib.util.find_spec(name) is not None:
                importlib.import_module(name)


def _names_in(packages: object) -> tuple[str, ...]:
    named = (packages,) if isinstance(packages, str) else packages
    if isinstance(named, Iterable):
        names = tuple(named)
        if all(isinstance(name, str) for name in names):
            return names
        named = names
    raise ImproperlyConfigured(
        f"autodiscover_tasks() got {safe_repr(named, 80)} as packages; expected a list of their "
        "names, or a function that returns one: app.autodiscover_tasks(['proj.mail', 'proj.shop'])"
    )
