"""Steps that must all run, even if some of them raise.

Owns the order of errors: the first one is raised after all steps, and later ones are added to it as
notes. Used once state was changed, when stopping after a failed step would lose something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class CleanupSteps:
    """Runs steps one after the other; `finish` raises the exception of the first failed one."""

    __slots__ = ("_failure",)

    def __init__(self) -> None:
        self._failure: BaseException | None = None

    def take(self, step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run a step; return its result, or None if it raised."""
        try:
            return step(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - kept: `finish` raises it
            if self._failure is None:
                self._failure = error
            else:
                self._failure.add_note(f"a later step failed too: {type(error).__name__}: {error}")
            return None

    def finish(self) -> None:
        """Raise the first failure, if there was one."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
