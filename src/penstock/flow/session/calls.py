"""Calls of one session: one at a time, and none after the session was terminated.

Owns the mutex of a session, and whether it may still be used. Does not own the work of a call, nor
the rollback (`transaction`).

The mutex exists for `terminate`. Another thread calls it while the processor's own thread may hang,
where it would not process mail. Invariant: after `terminate` or `end` every call raises, and
everything that was taken is given back, at the latest when the call that the terminated thread is
executing returns.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.flow.errors import SessionMisuse, Terminated

if TYPE_CHECKING:
    from types import TracebackType

Work = TypeVar("Work")


class RollBack(Protocol):
    """Function that gives back the FlowFiles that a session took."""

    def __call__(self, *, whole: bool = False, failed: bool = False) -> None:
        """Give back what was taken since the last checkpoint; if `whole`, what was before, too.

        Args:
            whole: Give back what was checkpointed, too.
            failed: The processor raised, or broke the rules: retry a batch in halves.
        """
        ...


class Calls(Generic[Work]):
    """Context manager for each call; it provides the object that the call works on.

    A call that breaks the rules rolls the session back.

    Args:
        processor: Processor of the session.
        work: Object that the calls work on.
        roll_back: Rolls the session back; called with the mutex held.
    """

    __slots__ = ("_ended", "_mutex", "_processor", "_roll_back", "_terminated", "_work")

    def __init__(self, processor: str, work: Work, roll_back: RollBack) -> None:
        self._processor = processor
        self._work = work
        self._roll_back = roll_back
        self._mutex = threading.RLock()
        self._terminated = False
        self._ended = False

    def __enter__(self) -> Work:
        self._mutex.acquire()
        if self._terminated:
            self._mutex.release()
            raise self._given_up()
        return self._work

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is not None and issubclass(kind, SessionMisuse):
                self._roll_back(failed=True)
        finally:
            self._mutex.release()
            # Check after the release: a later `terminate` finds the mutex free, and an earlier one
            # could not acquire it.
            if self._terminated:
                self._give_up()

    def terminate(self) -> None:
        """Terminate the session, from another thread, without waiting."""
        self._terminated = True
        self._give_up()

    def end(self) -> None:
        """Refuse further calls: the runner of the processor has finished with this session.

        FlowFiles that a remaining thread of the processor took now would never be given back.
        """
        self._ended = True
        self.terminate()

    @property
    def is_terminated(self) -> bool:
        """Return whether the session was terminated."""
        return self._terminated

    def _give_up(self) -> None:
        """Roll back, unless a call is running: then the end of that call rolls back."""
        if self._mutex.acquire(blocking=False):
            try:
                self._roll_back(whole=True)
            finally:
                self._mutex.release()

    def _given_up(self) -> Terminated:
        if self._ended:
            return Terminated(
                f"processor {self._processor}: the session was used after its trigger returned "
                "or on another thread; use it only on the triggered thread, before the trigger "
                "returns"
            )
        return Terminated(
            f"processor {self._processor} was terminated during this trigger, and its session "
            "was rolled back; return from the trigger"
        )
