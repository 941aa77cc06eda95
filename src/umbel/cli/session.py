"""What stands before the command: ``umbel -A app -b broker … COMMAND``."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import click

from umbel.app import Umbel
from umbel.cli.exits import Exit, Mistake, WrongUse
from umbel.cli.find_app import find_app
from umbel.cli.output import remark, visible
from umbel.urls import DEFAULT_URL


@dataclass(slots=True)
class Session:
    """The options of the group, and the app that they name."""

    app_name: str | None = None
    broker: str | None = None
    result_backend: str | None = None
    no_color: bool = False
    quiet: bool = False
    started_in: str | None = None
    """The working directory before ``--workdir``."""
    _app: Umbel | None = field(default=None, init=False)

    def use(self, app: Umbel) -> None:
        """Take this app, unless ``-A`` names another."""
        if self.app_name is None:
            self.app_name = app.main or "app"
            self._app = self._with_options(app)

    def named_app(self) -> Umbel:
        """The app of ``-A``, for commands that can't do without."""
        if self.app_name is None:
            raise WrongUse(
                "no app is named; put -A before the command, for example: umbel -A proj worker, "
                "where proj is the module or package with app = Umbel(...); or set UMBEL_APP"
            )
        return self.app()

    def app(self) -> Umbel:
        """The app of ``-A``, else one without tasks at the broker of ``-b`` or the default."""
        if self._app is None:
            self._app = self._load()
        return self._app

    def client(self) -> Umbel:
        """`app`, for commands that only make sense where a broker is already: they make none."""
        app = self.sender()
        app.configure()
        driver = app.connections.unopened()
        kind, _, path = driver.location.partition(":")
        if kind == "sqlite" and os.path.isdir(os.path.dirname(path)) and not os.path.exists(path):
            raise Mistake(
                f"there is no broker file {path}; check the path. The first task that is sent "
                "there makes it, or the first worker",
                Exit.UNAVAILABLE,
            )
        return app

    def sender(self) -> Umbel:
        """`app`, for sending a task, which makes the file of a broker that is named."""
        app = self.app()
        default = Path(DEFAULT_URL.removeprefix("sqlite:///"))
        if self.app_name is None and not app.connections.names_a_broker and not default.exists():
            raise Mistake(
                f"neither an app (-A) nor a broker (-b) is named, and there is no {default} in "
                f"{os.getcwd()}; for example: umbel -b sqlite:///tasks.db queues",
                Exit.CONFIG,
            )
        return app

    def _load(self) -> Umbel:
        # As for `python -m`: what lies in the working directory can be imported.
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        return self._with_options(
            Umbel("umbel") if self.app_name is None else find_app(self.app_name)
        )

    def _with_options(self, app: Umbel) -> Umbel:
        if self.broker is not None:
            app.conf.update(broker_url=self.broker, broker_read_url=None, broker_write_url=None)
        if self.result_backend is not None:
            app.conf.result_backend = self.result_backend
        return app

    def close(self) -> None:
        """Let go of the app's connections."""
        if self._app is not None:
            self._app.close()

    def note(self, text: str) -> None:
        """A remark to the person at the terminal; scripts that read the output never see it."""
        if not self.quiet:
            remark(visible(text, lines=True))


pass_session = click.make_pass_decorator(Session)
