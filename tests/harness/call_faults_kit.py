"""Faults for tests: any exception at any call of the ports of the part under test.

Owns the count of calls and the one fault that is armed. A port is an object that the part is given
and calls: a repository, a clock, a file system, a listener. A test wraps the ports, arms a fault,
calls the part, and then checks that nothing is lost and nothing is locked:

    faults = Faults()
    queue = FlowFileQueue("q", faults.port(home), faults.port(clock))
    with faults.armed(MemoryError, at=3):
        queue.poll_many(10)

The fault is raised before the call reaches the port, so the port did nothing, or, with ``after``,
when the port has done it, so its result is lost. With ``then`` a second fault hits the part while
it handles the first, for example while it puts back what it took.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final, TypeVar, cast

from penstock.core.errors import PenstockError, Unavailable

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

T = TypeVar("T")

# One of each kind: the system's, the interpreter's, the user's, a program's, and Penstock's own.
FAULTS: Final[tuple[type[BaseException], ...]] = (
    OSError,
    MemoryError,
    KeyboardInterrupt,
    RuntimeError,
    PenstockError,
    Unavailable,
)


class Faults:
    """Counts calls of ports and raises at one of them.

    Attributes:
        raised: The port and method at which the last fault was raised, for two faults
            "first, then second"; empty if none was raised.
        unraised: Number of calls in the last block in which nothing was raised.
        passed: Functions that were called in the last `armed_inside` before one raised, in order.
        followed: Number of calls of ports between the last fault and the end of its block.
        unclosed: Ports that were results of calls, such as files and locks, and are not closed.
    """

    def __init__(self) -> None:
        self.raised = ""
        self.unraised = 0
        self.passed: list[str] = []
        self.followed = 0
        self.unclosed: set[object] = set()
        self._is_armed = False
        self._error: type[BaseException] | None = None
        self._left = 0
        self._after = False
        self._then: tuple[type[BaseException], int] | None = None

    @contextmanager
    def armed(
        self,
        error: type[BaseException],
        at: int,
        *,
        after: bool = False,
        then: tuple[type[BaseException], int] | None = None,
    ) -> Iterator[None]:
        """Raise an error at one of the calls in the block, once, and suppress that error.

        Args:
            error: The exception to raise.
            at: Number of calls before the fault; with fewer calls nothing is raised.
            after: Raise when the call has taken effect; a call that raises by itself still counts.
            then: A second exception, and the number of calls between the first fault and it. It
                is raised before its call reaches the port.
        """
        self.raised, self._error, self._left, self._after = "", error, at, after
        self._then, self.followed, self._is_armed = then, 0, True
        errors = (error,) if then is None else (error, then[0])
        try:
            yield
        except errors:
            if not self.raised:
                raise
        finally:
            self.unraised = at - self._left
            self._error = self._then = None
            self._is_armed = False

    @contextmanager
    def armed_inside(
        self, modules: Collection[str], error: type[BaseException], at: int
    ) -> Iterator[None]:
        """Raise an error at one of the calls of Python functions in the block, and suppress it.

        Memory can run out at any call. Ports are called less often than the functions of the part
        itself, so this finds places between two calls of ports at which state is half changed.

        Args:
            modules: Names of the modules and packages whose functions count.
            error: The exception to raise.
            at: Number of calls, by this thread, before the fault; with fewer nothing is raised.

        Raises:
            LookupError: A name is not that of an imported module, so the part never calls it.
        """
        if unknown := sorted({*modules} - sys.modules.keys()):
            raise LookupError(
                f"modules {unknown} are not imported, so no fault would be raised in them: "
                "correct their names"
            )
        self.raised, self.followed = "", 0
        names, left = tuple(modules), at
        passed: list[CodeType] = []
        counted: dict[CodeType, bool] = {}  # this runs at each call of any function

        def trace(frame: FrameType, event: str, argument: object) -> None:
            nonlocal left
            del event, argument
            code = frame.f_code
            is_counted = counted.get(code)
            if is_counted is None:
                name = str(frame.f_globals.get("__name__"))
                # Exceptions in finalizers are ignored.
                is_end = code.co_name in ("__del__", "<genexpr>")
                is_counted = counted[code] = not is_end and name.startswith(names)
            if not is_counted:
                return
            if left:
                left -= 1
                passed.append(code)
                return
            self.raised = f"{frame.f_globals['__name__']}.{code.co_qualname}"
            raise error(f"fault at {self.raised}")  # also ends the tracing

        def ignore(unraisable: UnraisableHookArgs) -> None:
            # The interpreter ends an abandoned generator, and drops what that raises.
            if not isinstance(unraisable.exc_value, error):
                hook(unraisable)

        before, hook = sys.gettrace(), sys.unraisablehook
        sys.unraisablehook = ignore
        sys.settrace(trace)
        try:
            yield
        except error:
            if not self.raised:
                raise
        finally:
            self.unraised = at - left
            self.passed = [f"{code.co_filename}: {code.co_qualname}" for code in passed]
            sys.settrace(before)
            sys.unraisablehook = hook

    def port(self, target: T, results: Collection[str] = ()) -> T:
        """Return a port whose calls are counted.

        Args:
            target: The port.
            results: Methods whose results are ports, too, such as ``open``.
        """
        return cast("T", _Port(target, self, results))

    def call(self, name: str, reach: Callable[[], T]) -> T:
        """Count a call of a port, and make it.

        Args:
            name: The name of the call, which `armed` refers to.
            reach: Makes the call.
        """
        if self._error is None:
            self.followed += self._is_armed
            return reach()
        if self._left:
            self._left -= 1
            return reach()
        error, after = self._error, self._after
        self.raised += f", then {name}" if self.raised else name
        self._error, self._left = self._then or (None, 0)
        self._then, self._after, self.followed = None, False, 0
        if after:
            reach()
        raise error(f"fault at {name}")


class _Port:
    """Stands in for a port; its attributes are those of the port."""

    def __init__(self, target: object, faults: Faults, results: Collection[str]) -> None:
        self._target = target
        self._faults = faults
        self._results = results

    def __call__(self, *arguments: object, **named: object) -> object:
        target = cast("Callable[..., object]", self._target)
        return self._faults.call("call", lambda: target(*arguments, **named))

    def __getattr__(self, name: str) -> object:
        value = getattr(self._target, name)
        if not callable(value):
            return value

        def call(*arguments: object, **named: object) -> object:
            if name in ("close", "release"):  # who tried, and met a fault, has done its part
                self._faults.unclosed.discard(self)
            result = self._faults.call(
                f"{type(self._target).__name__}.{name}", lambda: value(*arguments, **named)
            )
            if name not in self._results:
                return result
            opened = self._faults.port(result)
            self._faults.unclosed.add(opened)
            return opened

        return call
