"""``umbel retry-plan``: the delays that a task's retries will have."""

from __future__ import annotations

import builtins
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import cast

import click

from umbel import exceptions
from umbel.cli.exits import Mistake, WrongUse
from umbel.cli.output import print_json, print_table
from umbel.cli.session import Session, pass_session
from umbel.exceptions import TaskPredicate
from umbel.options import TaskOptions
from umbel.retry import AutoRetry, Backoff, Bounds, Fixed, Policy
from umbel.retry.plan import Plan, make_plan
from umbel.retry.policies import CeleryBackoff

EXAMPLES = """\b
Examples:
  umbel -A proj retry-plan proj.tasks.fetch
  umbel -A proj retry-plan proj.tasks.fetch --exception requests.exceptions.Timeout
  umbel -A proj retry-plan proj.tasks.fetch --json

All times are in seconds and without the runs themselves. Jitter draws each delay between the
earliest and the latest; the expected one is the mean.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One way in which a task is retried; `exceptions` is empty for ``self.retry()``."""

    exceptions: tuple[str, ...]
    policy: str
    max_retries: int | None
    max_elapsed: float | None
    retry_after_maximum: float | None
    plan: Plan


@click.command("retry-plan", epilog=EXAMPLES)
@click.argument("task", metavar="TASK")
@click.option("--exception", metavar="CLASS", help="Only what follows on this: module.Class.")
@click.option(
    "--retries",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Show at most so many retries.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_session
def command(
    session: Session, /, task: str, exception: str | None, retries: int, as_json: bool
) -> None:
    """Show when TASK is tried again, and what all of its retries take together."""
    options = _options(session, task)
    reason = ""
    if exception is None:
        cases = list(_all_cases(options, retries))
    else:
        error = _blank(_find_class(exception, options.auto))
        reason = _why_not(task, error, options.auto)
        cases = [] if reason else [_case((error,), options, retries)]
    if as_json:
        print_json(_as_data(task, cases, options.auto, reason))
        return
    for case in cases:
        _print(task, case, session.no_color)
        if case is not cases[-1]:
            click.echo()
    names = _names(options.auto.dead_letter_for)
    if reason:
        click.echo(reason)
    elif names and exception is None:
        click.echo(f"\nnever retried: {', '.join(names)}")


def _options(session: Session, name: str) -> TaskOptions:
    tasks = session.named_app().tasks
    if name in tasks:
        return tasks[name].options
    near = difflib.get_close_matches(name, tasks, n=1)
    question = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(sorted(tasks))}"
    raise WrongUse(f"the app has no task {name!r}; {question}")


def _all_cases(options: TaskOptions, limit: int) -> Iterator[Case]:
    """One for each class of a mapping, else one for all classes together, or for self.retry()."""
    kinds = options.auto.autoretry_for
    if isinstance(kinds, tuple):
        yield _case(tuple(_blank(kind) for kind in kinds), options, limit)
        return
    for kind in kinds:
        yield _case((_blank(kind),), options, limit)


def _case(errors: tuple[BaseException, ...], options: TaskOptions, limit: int) -> Case:
    auto = options.auto
    error = errors[0] if errors else Exception()
    named = auto.backoff(error) if errors else auto.named_backoff(error)
    max_retries = auto.max_retries(options.max_retries) if errors else options.max_retries
    backoff, text = (
        _plain_delay(options, bool(errors)) if named is None else (named, _policy_text(named))
    )

    def bounds(retries: int) -> Bounds:
        try:
            return auto.bounds(backoff, error, retries)
        except Exception as failure:  # the function is the user's
            raise Mistake(
                f"{text} raised {type(failure).__name__} for a "
                f"{type(error).__name__} without contents: {failure}"
            ) from failure

    return Case(
        exceptions=_names(tuple(type(each) for each in errors)),
        policy=text,
        max_retries=max_retries,
        max_elapsed=auto.retry_max_elapsed,
        retry_after_maximum=_retry_after_maximum(auto, named),
        plan=make_plan(
            bounds, max_retries=max_retries, max_elapsed=auto.retry_max_elapsed, limit=limit
        ),
    )


def _plain_delay(options: TaskOptions, automatic: bool) -> tuple[Fixed, str]:
    """The delay before each retry of a task without any backoff, and the option it is from."""
    kwargs = options.auto.retry_kwargs if automatic else {}
    countdown = kwargs.get("countdown")
    if countdown is None and kwargs.get("eta") is not None:
        raise Mistake("retry_kwargs has a fixed eta: every retry is due at it, or at once after it")
    if countdown is None:
        seconds, text = options.default_retry_delay, "default_retry_delay"
    else:
        if isinstance(countdown, timedelta):
            countdown = countdown.total_seconds()
        seconds, text = float(cast(float, countdown)), "retry_kwargs countdown"
    return Fixed(max(0.0, seconds)), f"{text}={seconds:g}"


def _retry_after_maximum(auto: AutoRetry, backoff: Backoff | None) -> float | None:
    if backoff is None or isinstance(backoff, CeleryBackoff):
        return None
    return backoff.ceiling if isinstance(backoff, Policy) else auto.retry_backoff_max


def _policy_text(backoff: Backoff) -> str:
    if not isinstance(backoff, Policy):
        return f"the function {getattr(backoff, '__qualname__', repr(backoff))}"
    if isinstance(backoff, CeleryBackoff):
        return (
            f"retry_backoff={backoff.factor}, retry_backoff_max={backoff.maximum}, "
            f"retry_jitter={backoff.jitter}"
        )
    return repr(backoff)


def _why_not(task: str, error: BaseException, auto: AutoRetry) -> str:
    """The sentence for an exception that doesn't lead to a retry by itself; empty for others."""
    if auto.wants(error):
        return ""
    name = type(error).__name__
    for option in ("dead_letter_for", "dont_autoretry_for"):
        for kind in getattr(auto, option):
            if isinstance(error, kind):
                return f"{task} isn't retried after {name}: {option} names {kind.__name__}"
    if isinstance(error, TaskPredicate):
        return f"{task} isn't retried after {name}: by raising it, a task says itself how it ends"
    return f"{task} isn't retried after {name}: autoretry_for doesn't name it or a base of it"


def _find_class(name: str, auto: AutoRetry) -> type[BaseException]:
    """The class of a dotted name; of a plain one, if it is built in, Umbel's, or in the options."""
    named = (*auto.autoretry_for, *auto.dead_letter_for, *auto.dont_autoretry_for)
    known: dict[str, object] = {**vars(builtins), **vars(exceptions)}
    known.update((kind.__name__, kind) for kind in named)
    module, _, last = name.rpartition(".")
    try:
        found = getattr(import_module(module), last, None) if module else known.get(last)
    except ImportError as error:
        raise WrongUse(f"--exception {name}: can't import {module!r}: {error}") from error
    if isinstance(found, type) and issubclass(found, BaseException):
        return found
    raise WrongUse(
        f"--exception {name}: there is no such exception class; write module.Class, such as "
        "builtins.ConnectionError"
    )


def _blank(kind: type[BaseException]) -> BaseException:
    """An exception of this class, without arguments where its constructor allows none."""
    try:
        return kind()
    except Exception:  # the class is the user's
        return kind.__new__(kind)


def _names(kinds: tuple[type[BaseException], ...]) -> tuple[str, ...]:
    return tuple(kind.__name__ for kind in kinds)


def _print(task: str, case: Case, no_color: bool) -> None:
    plan = case.plan
    after = " or ".join(case.exceptions) or "self.retry()"
    click.echo(f"{task} after {after}: {case.policy}\n{_limits(case)}")
    if plan.steps:
        print_table(
            ("retry", "earliest", "expected", "latest", "total: earliest", "expected", "latest"),
            [
                [str(step.number), *map(_seconds, step.delay), *map(_seconds, step.since)]
                for step in plan.steps
            ],
            no_color=no_color,
        )
    click.echo(_total(plan))
    if case.retry_after_maximum is not None:
        click.echo(f"a Retry-After makes a delay longer, up to {case.retry_after_maximum:g} s")


def _total(plan: Plan) -> str:
    counts = plan.counts
    cases = ", ".join(
        f"{name} {seconds:g} s" + (f" ({made} retries)" if len(set(counts)) > 1 else "")
        for name, seconds, made in zip(Bounds._fields, plan.total, counts, strict=True)
    )
    at_most = f"; never more than {plan.at_most:g} s" if plan.at_most > plan.total.latest else ""
    return f"total{' of these' if plan.more else ''}: {cases}{at_most}"


def _limits(case: Case) -> str:
    retries = case.max_retries
    text = "no limit of retries" if retries is None else f"retries: {retries}, runs: {retries + 1}"
    if case.max_elapsed is not None:
        text += f", none later than {case.max_elapsed:g} s after the first run began"
    return text


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _as_data(task: str, cases: list[Case], auto: AutoRetry, reason: str) -> dict[str, object]:
    names = Bounds._fields
    return {
        "task": task,
        "plans": [
            {
                "exceptions": case.exceptions,
                "policy": case.policy,
                "max_retries": case.max_retries,
                "max_elapsed": case.max_elapsed,
                "retry_after_maximum": case.retry_after_maximum,
                "retries": [
                    {
                        "retry": step.number,
                        "delay": step.delay._asdict(),
                        "since_first_run": dict(zip(names, step.since, strict=True)),
                    }
                    for step in case.plan.steps
                ],
                "total": case.plan.total._asdict(),
                "made": dict(zip(names, case.plan.counts, strict=True)),
                "at_most": case.plan.at_most,
                "more": case.plan.more,
            }
            for case in cases
        ],
        "never_retried": _names(auto.dead_letter_for),
        "reason": reason,
    }
