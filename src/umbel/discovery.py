"""Find the modules with tasks in a project's packages."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from umbel.exceptions import ImproperlyConfigured

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
        named = (packages,) if isinstance(packages, str) else packages
        return cls(named if callable(named) else tuple(named), related_name)

    def load(self) -> None:
        """Import them. A package may have no such module; what its code raises is raised."""
        for package in self.packages() if callable(self.packages) else self.packages:
            importlib.import_module(package)
            name = f"{package}.{self.related_name}"
            if self.related_name and importlib.util.find_spec(name) is not None:
                importlib.import_module(name)
