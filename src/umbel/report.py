"""What somebody who is to find a fault has to know: versions, settings, what the broker can do.

Nothing is connected to, and passwords are replaced by stars, so the report can be posted as it is.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING, Any, Final

import msgspec

from umbel.drivers import make_broker
from umbel.exceptions import UmbelError
from umbel.settings import censored

if TYPE_CHECKING:
    from umbel.app import Umbel

_REQUIREMENT: Final = re.compile(r"""([\w.-]+).*?(?:;.*?extra\s*==\s*["']([\w-]+)["'])?""")
"""A line of a package's metadata, such as ``pika>=1.3; extra == "amqp"``: package and extra."""
_OLDER: Final = re.compile(r"""python_version\s*<\s*["'](\d+)\.(\d+)["']""")
"""What only Pythons older than that need."""


def bugreport(app: Umbel) -> str:
    """The report as text, as ``umbel report`` prints it."""
    return as_text(collect(app))


def collect(app: Umbel) -> dict[str, Any]:
    """The report: names are keys, everything is plain data but the values of settings.

    ``extras`` has for each the versions of its packages, None for those that aren't installed.
    ``features`` are those of `umbel.ports.Features`. ``settings`` are those that aren't at their
    defaults.
    """
    needed, extras = _packages()
    return {
        "umbel": _version("umbel"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "packages": needed,
        "extras": extras,
        "app": {
            "name": app.main,
            "tasks": sum(not name.startswith("celery.") for name in app.tasks),
        },
        "broker": _broker(app),
        "result_backend": _store(app),
        "environment": sorted(
            name for name in os.environ if name.startswith(("UMBEL_", "CELERY_"))
        ),
        "settings": app.conf.table(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except PackageNotFoundError:
        return None


def _packages() -> tuple[dict[str, str | None], dict[str, dict[str, str | None]]]:
    """(what Umbel needs, what each extra needs), with the versions that are installed."""
    needed: dict[str, str | None] = {}
    extras: dict[str, dict[str, str | None]] = {}
    try:
        lines = metadata.requires("umbel") or []
    except PackageNotFoundError:
        lines = []
    for line in lines:
        older = _OLDER.search(line)
        if older and sys.version_info >= tuple(map(int, older.groups())):
            continue
        if found := _REQUIREMENT.fullmatch(line):
            package, extra = found.groups()
            if extra == "all":
                continue
            group = needed if extra is None else extras.setdefault(extra, {})
            group[package] = _version(package)
    return needed, extras


def _broker(app: Umbel) -> dict[str, Any]:
    url = app.connections.broker_url
    found: dict[str, Any] = {"url": censored("broker_url", url)}
    if app.connections.outlet_url != url:
        found["write_url"] = censored("broker_url", app.connections.outlet_url)
    try:
        features = make_broker(url, app.conf, app.clock).features
    except UmbelError as error:
        found["error"] = str(error)
    else:
        found["features"] = msgspec.structs.asdict(features)
    return found


def _store(app: Umbel) -> dict[str, Any]:
    url = app.connections.store_url
    return {"url": censored("result_backend", url) if url else None}


def as_text(report: dict[str, Any]) -> str:
    """A line ``name: value`` for each; below settings, features and extras one for each of them."""
    lines = [f"umbel: {report['umbel']}"]
    lines += [f"{name}: {report[name]}" for name in ("python", "executable", "platform")]
    lines += [f"processors: {report['processors']}", f"packages: {_versions(report['packages'])}"]
    extras = report["extras"]
    present = {name: packages for name, packages in extras.items() if any(packages.values())}
    lines += _below("extras", {name: _versions(packages) for name, packages in present.items()})
    lines += [f"extras that aren't installed: {_names(set(extras) - set(present))}"]
    app, broker = report["app"], report["broker"]
    lines += [f"app: {app['name']!r} with {app['tasks']} tasks", f"broker: {broker['url']}"]
    lines += [f"  {key}: {broker[key]}" for key in ("write_url", "error") if key in broker]
    if features := broker.get("features"):
        lines += [f"  can: {_names(name for name in features if features[name])}"]
        lines += [f"  can't: {_names(name for name in features if not features[name])}"]
    lines += [f"result backend: {report['result_backend']['url'] or 'disabled'}"]
    lines += [f"variables in the environment: {_names(report['environment'])}"]
    settings = {name: repr(value) for name, value in report["settings"].items()}
    lines += _below("settings that aren't at their defaults", settings)
    return "\n".join(lines)


def _versions(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or '(missing)'}" for name, version in packages.items())


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _below(title: str, lines: dict[str, str]) -> list[str]:
    if not lines:
        return [f"{title}: none"]
    return [f"{title}:", *(f"  {name}: {value}" for name, value in lines.items())]
