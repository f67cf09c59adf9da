"""Steps that must all be taken, even if some of them raise.

Owns the order of errors: the first one is raised when all steps were taken, and later ones are
notes of it. Used where state was changed already, so that stopping half way would lose something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Steps:
    """Takes steps one after the other; `finish` raises what the first failed one raised."""

    __slots__ = ("_failure",)

    def __init__(self) -> None:
        self._failure: BaseException | None = None

    def take(self, step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Take a step; return what it returned, or None if it raised."""
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
