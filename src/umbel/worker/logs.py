"""Log lines of a worker, in Celery's format or as JSON; a set-up of the app's is left alone."""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import re
import sys
import threading
from typing import Any, Final, TextIO

from umbel import signals
from umbel.exceptions import ImproperlyConfigured
from umbel.settings import Settings, censored
from umbel.tasklog import TASK_LOGGER, WorkerFormatter
from umbel.worker.jsonlog import JsonFormatter
from umbel.worker.options import PoolSize, WorkerOptions

logger = logging.getLogger("umbel.worker")
stdouts = logging.getLogger("umbel.redirected")

LONGEST_LINE: Final = 4096
_COLOURS: Final = {logging.DEBUG: 34, logging.WARNING: 33, logging.ERROR: 31, logging.CRITICAL: 35}
"""Blue, yellow, red, magenta."""
_LINE_END: Final = re.compile(r"[\r\n]")


def set_up_logging(conf: Settings, options: WorkerOptions) -> None:
    """Log to stderr or the logfile, unless the app has set up the root logger itself.

    A receiver of ``setup_logging`` takes over all of it.
    """
    level = log_level(options.loglevel)
    colours = _wants_colours(conf, options)
    given = {
        "loglevel": level,
        "logfile": options.logfile,
        "format": conf.worker_log_format,
        "colorize": colours,
    }
    if signals.setup_logging.receivers:
        signals.setup_logging.send(None, **given)
        _say_json_is_not_ours(conf)
        return
    root = logging.getLogger()
    # Its default leaves the app's own set-up alone.
    hijacks = conf.value_set_for("worker_hijack_root_logger") and conf.worker_hijack_root_logger
    if root.handlers and not hijacks:
        logger.setLevel(level)
        _say_json_is_not_ours(conf)
        return
    handler = _handler(options.logfile)
    handler.setFormatter(_Coloured(_formatter(conf)) if colours else _formatter(conf))
    root.handlers[:] = [handler]
    root.setLevel(level)
    signals.after_setup_logger.send(None, logger=root, **given)
    given["format"] = conf.worker_task_log_format
    tasks = logging.getLogger(TASK_LOGGER)
    signals.after_setup_task_logger.send(None, logger=tasks, **given)
    if conf.worker_redirect_stdouts:
        redirect_stdouts(handler, conf.worker_redirect_stdouts_level)


def _formatter(conf: Settings) -> logging.Formatter:
    if conf.worker_log_json:
        return JsonFormatter()
    return WorkerFormatter(
        conf.worker_log_format,
        conf.worker_log_datefmt,
        conf.worker_task_log_format,
        conf.worker_task_log_datefmt,
    )


def _wants_colours(conf: Settings, options: WorkerOptions) -> bool:
    """`worker_log_color`; None is for a terminal. Never in a file or in JSON."""
    if options.logfile or conf.worker_log_json:
        return False
    if conf.worker_log_color is None:
        return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return conf.worker_log_color


class _Coloured(logging.Formatter):
    """What another formatter gives, in the colour of its level; INFO has none."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        text = self._formatter.format(record)
        colour = _COLOURS.get(record.levelno)
        return text if colour is None else f"\x1b[{colour}m{text}\x1b[0m"


def _say_json_is_not_ours(conf: Settings) -> None:
    if conf.worker_log_json:
        logger.warning(
            "worker_log_json (--log-json) has no effect: the app has set up logging itself. Give "
            "its handler an umbel.worker.jsonlog.JsonFormatter(), or leave logging to the worker."
        )


def _handler(logfile: str | None) -> logging.Handler:
    if not logfile:
        return logging.StreamHandler()
    try:
        return logging.FileHandler(logfile, errors="backslashreplace")
    except OSError as error:
        raise ImproperlyConfigured(
            f"--logfile {logfile} can't be written: {error.strerror}; name a file in a folder "
            "that this user may write to"
        ) from error


def redirect_stdouts(handler: logging.Handler, level: str | int) -> None:
    """What tasks print becomes log lines; the handler keeps the real stream."""
    if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
        handler.setStream(sys.__stderr__)
    number = log_level(level)
    sys.stdout = _Lines(number)
    sys.stderr = _Lines(number)


class _Lines(io.TextIOBase):
    """A stream whose lines go to the log."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._rest = ""
        self._local = threading.local()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        # A handler that itself fails writes its traceback to sys.stderr, which is this.
        if getattr(self._local, "writing", False):
            stream: TextIO | None = sys.__stderr__
            return stream.write(text) if stream else len(text)
        *lines, self._rest = _LINE_END.split(self._rest + text)
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)
            self._rest = ""
        self._log(lines)
        return len(text)

    def flush(self) -> None:
        rest, self._rest = self._rest, ""
        self._log([rest])

    def _log(self, lines: list[str]) -> None:
        self._local.writing = True
        try:
            for line in lines:
                if line.strip():
                    stdouts.log(self._level, "%s", line)
        finally:
            self._local.writing = False

    def isatty(self) -> bool:
        return False


def log_level(level: str | int) -> int:
    """A level by its number or name. Raises `ImproperlyConfigured`."""
    if isinstance(level, int):
        return level
    number: Any = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ImproperlyConfigured(
            f"log level {level!r} doesn't exist; expected DEBUG, INFO, WARNING, ERROR, CRITICAL"
        )
    return int(number)


def name_process(name: str) -> None:
    """What ``%(processName)s`` shows."""
    multiprocessing.current_process().name = name


def say_hello(hostname: str, broker_url: str, queues: tuple[str, ...], size: PoolSize) -> None:
    logger.info(
        "%s: broker %s, queues %s, %s.",
        hostname,
        censored("broker_url", broker_url),
        ", ".join(queues),
        size,
    )
