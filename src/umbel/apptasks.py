"""The part of an app that is its tasks: making, finding and annotating them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from umbel.annotations import annotate
from umbel.appsettings import Configured, as_app
from umbel.arguments import argument_check
from umbel.clock import Clock
from umbel.configure import find_object
from umbel.discovery import Discovery, Packages
from umbel.keywords import TaskKeywords
from umbel.registry import (
    AnyTask,
    TaskRegistry,
    checked_base,
    task_of_class,
    task_of_function,
    warn_if_taken,
)
from umbel.shared import SHARED, Shared, check_filter
from umbel.signals import Signal
from umbel.task import Task

P = ParamSpec("P")
R = TypeVar("R")


class WithTasks(Configured):
    """An app, as far as it has tasks."""

    task_cls: type[Task[..., Any]] | str = Task
    """The class of the app's tasks, or its dotted name."""

    def __init__(
        self,
        main: str | None,
        task_cls: type[Task[..., Any]] | str | None,
        autofinalize: bool,
        namespace: str,
        clock: Clock,
        given: Mapping[str, Any],
    ) -> None:
        super().__init__(namespace, clock, given)
        self.main = main
        if task_cls is not None:
            self.task_cls = task_cls
        self.autofinalize = autofinalize
        self.finalized = False
        self.on_configure = Signal("on_configure")
        self.on_after_configure = Signal("on_after_configure", ("source",))
        self.on_after_finalize = Signal("on_after_finalize")
        self._registry = TaskRegistry()
        self._discoveries: list[Discovery] = []
        self._shared_seen = 0

    def configure(self) -> None:
        """Send `on_configure` and `on_after_configure`, once, before the first real use."""
        if not self.configured:
            self.configured = True
            self.on_configure.send(self)
            self.on_after_configure.send(self, source=self.conf)
            for task in self._registry.values():
                self._annotate(task)

    def finalize(self, auto: bool = False) -> None:
        """End the set-up: send `on_after_finalize`, once. The first look at `tasks` does it.

        `auto` is the look at `tasks`; it raises `RuntimeError` for an app that was made with
        ``autofinalize=False`` and isn't finalized.
        """
        if self.finalized:
            return
        if auto and not self.autofinalize:
            raise RuntimeError(
                f"{self!r} was made with autofinalize=False and isn't finalized; call "
                "app.finalize() before its tasks are used"
            )
        self.finalized = True
        self.configure()
        self.on_after_finalize.send(self)

    @property
    def tasks(self) -> TaskRegistry:
        """The tasks by name, with those of `shared_task`."""
        if not self.finalized:
            self.finalize(auto=True)
        if self._shared_seen < len(SHARED):
            self._take_shared()
        return self._registry

    def register_task(self, task: AnyTask | type[AnyTask], **options: Any) -> AnyTask:
        """Make a task of a class of tasks, or of its object; it replaces one of the same name.

        Its name is the class's `name`, else ``<module>.<class>``. `options` go above those of
        the class. Returns the task. Raises `TypeError` for what isn't one, or has no `run`.
        """
        made = task_of_class(as_app(self), task, options)
        self._annotate(made)
        self._registry[made.name] = made
        return made

    @overload
    def task(self, fun: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self, fun: None = None, /, *, bind: Literal[True], **options: Unpack[TaskKeywords]
    ) -> Callable[[Callable[Concatenate[Any, P], R]], Task[P, R]]: ...

    @overload
    def task(
        self, fun: None = None, /, *, bind: Literal[False] = False, **options: Unpack[TaskKeywords]
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        fun: Callable[..., Any] | None = None,
        /,
        *,
        bind: bool = False,
        filter: Callable[[Task[..., Any]], Any] | None = None,
        **options: Any,
    ) -> Any:
        """Make a function a task: ``@app.task``, or ``@app.task(bind=True, max_retries=5)``.

        With `bind` the function's first parameter is the task itself. The name is
        ``<module>.<function>`` unless given. Of two functions under one name the first stays,
        and the second is warned of (`DuplicateTaskNameWarning`). The decorator gives what `filter`
        makes of the task, which stays registered as it is.
        """
        check_filter(filter)
        if fun is not None:
            return self._register(fun, bind, options)
        if filter is not None:
            return lambda function: filter(self._register(function, bind, options))
        return lambda function: self._register(function, bind, options)

    def gen_task_name(self, name: str, module: str) -> str:
        """The name of a task that is given none."""
        return f"{self.main or module if module == '__main__' else module}.{name}"

    def autodiscover_tasks(
        self,
        packages: Packages | None = None,
        related_name: str | None = "tasks",
        force: bool = False,
    ) -> None:
        """Import the module `related_name` of each package that has one, when a worker starts.

        `packages` may be a function that names them, called only then; `related_name` None
        imports the packages alone; `force` imports at once.
        """
        discovery = Discovery.of(packages, related_name)
        if force:
            discovery.load()
        else:
            self._discoveries.append(discovery)

    def load_modules(self) -> None:
        """Import what `imports`, `include` and `autodiscover_tasks` name: their tasks are known."""
        for name in (*self.conf.imports, *self.conf.include):
            importlib.import_module(name)
        for discovery in self._discoveries:
            discovery.load()

    def annotate(self, task: Task[..., Any]) -> None:
        """Change a task by `task_annotations`; done for each as it is registered."""
        annotate(task, self.annotations)

    def type_checker(
        self, fun: Callable[..., object], bound: bool = False
    ) -> Callable[..., object]:
        """A function with the parameters of `fun`, without the first where that is `bound`.

        It does nothing; calling it raises `TypeError` for arguments that don't fit.
        """
        return argument_check(functools.partial(fun, None) if bound else fun, fun.__name__)

    def _register(
        self, fun: Callable[..., Any], bind: bool, declared: dict[str, Any]
    ) -> Task[..., Any]:
        given = declared.pop("name", None)
        base = declared.pop("base", None) or self._task_cls()
        if not callable(fun) or isinstance(fun, Task):
            raise TypeError(f"@app.task got {fun!r:.80}; expected a function")
        name = given or self.gen_task_name(fun.__name__, fun.__module__)
        if not isinstance(name, str):
            raise TypeError(f"the name of a task is {name!r:.80}; expected a text")
        known = self._registry.get(name)
        if known is not None:
            warn_if_taken(known, fun)
            return known
        made = task_of_function(as_app(self), fun, name, base, bind, declared)
        self._annotate(made)
        if declared.get("shared") is True:
            SHARED.append(Shared(fun, bind, {**declared, "name": given, "base": base}))
        return self._registry.setdefault(name, made)

    def add_shared(self, fun: Callable[..., Any], bind: bool, declared: dict[str, Any]) -> None:
        """Make a task of a shared one, unless its name is taken: an app's own task wins."""
        declared.pop("shared", None)
        given = declared.get("name")
        name = given or self.gen_task_name(fun.__name__, fun.__module__)
        if name not in self._registry:
            self._register(fun, bind, declared)

    def _annotate(self, task: Task[..., Any]) -> None:
        if self.configured:
            self.annotate(task)

    def _task_cls(self) -> type[Task[..., Any]]:
        """The class that `task_cls` is or names."""
        given = self.task_cls
        return checked_base(find_object(given) if isinstance(given, str) else given)

    def _take_shared(self) -> None:
        shared = SHARED[self._shared_seen :]
        for each in shared:
            each.add_to(as_app(self))
        self._shared_seen += len(shared)

    def subclass_with_self(
        self, cls: type[Any], name: str | None = None, attribute: str = "app", **attributes: object
    ) -> type[Any]:
        """A class derived from `cls` that has this app as its `attribute`."""
        attributes = {"__module__": cls.__module__, "__doc__": cls.__doc__, **attributes}
        return type(name or cls.__name__, (cls,), {attribute: self, **attributes})

    def create_task_cls(self) -> type[Any]:
        """What `Task` is; for classes of apps."""
        return self.subclass_with_self(self._task_cls(), "Task", __module__=__name__)

    @functools.cached_property
    def Task(self) -> type[Any]:
        """The class of this app's tasks, to derive classes from: `task_cls`, with this `app`."""
        return self.create_task_cls()
