"""``umbel settings``: the settings of an app, and what each of them means."""

from __future__ import annotations

import click

from umbel.cli.exits import WrongUse
from umbel.cli.output import print_json, print_table
from umbel.cli.session import Session, pass_session
from umbel.exceptions import UnknownSetting
from umbel.settings import SETTINGS, Setting, Settings, State, censored

EXAMPLES = """\b
Examples:
  umbel -A proj settings
  umbel settings worker_lease_time task_acks_late
  umbel -A proj settings --all --json

Without names: the settings that differ from their defaults. Passwords are never printed.
"""


@click.command("settings", epilog=EXAMPLES)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "with_defaults", is_flag=True, help="Show all of them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_session
def command(
    session: Session, /, names: tuple[str, ...], with_defaults: bool, as_json: bool
) -> None:
    """Show settings: name, value, and what setting it does in this release."""
    conf = session.app().conf
    try:
        chosen = [conf.describe(name) for name in names] or _chosen(conf, with_defaults)
    except UnknownSetting as error:
        raise WrongUse(str(error)) from error
    if as_json:
        print_json([_as_json(setting, conf) for setting in chosen])
    elif not chosen:
        session.note("umbel: every setting has its default; --all shows them")
    else:
        print_table(
            ("setting", "value", "state", "meaning"),
            [
                (setting.name, _value(setting, conf), setting.state.value, _sentence(setting))
                for setting in chosen
            ],
            no_color=session.no_color,
        )


def _chosen(conf: Settings, with_defaults: bool) -> list[Setting]:
    return [SETTINGS[name] for name in conf.table(with_defaults)]


def _value(setting: Setting, conf: Settings) -> str:
    return repr(censored(setting.name, conf[setting.name]))


def _sentence(setting: Setting) -> str:
    if setting.state is State.HONOURED:
        return setting.meaning
    return f"{setting.meaning}; {setting.sentence}"


def _as_json(setting: Setting, conf: Settings) -> dict[str, object]:
    return {
        "name": setting.name,
        "value": censored(setting.name, conf[setting.name]),
        "default": censored(setting.name, setting.default),
        "type": setting.type,
        "state": setting.state.value,
        "meaning": setting.meaning,
        "sentence": setting.sentence,
    }
