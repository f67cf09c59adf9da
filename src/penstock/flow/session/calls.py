"""The calls of one session: one at a time, and none after it was given up.

Owns the mutex of a session, and whether it may still be used. Does not own what a call does, nor
what giving back is (`transaction`).

The mutex is for `terminate`, which comes from another thread while the processor's own may hang
where no mail would reach it. Invariant: after `terminate` or `end` every call raises, and all that
was taken is given back, at the latest when the call ends that the given-up thread was in.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.flow.errors import SessionMisuse, Terminated

if TYPE_CHECKING:
    from types import TracebackType

Work = TypeVar("Work")


class RollBack(Protocol):
    """Gives back what was taken."""

    def __call__(self, *, whole: bool = False) -> None:
        """Give back what was taken since the last checkpoint; if `whole`, what was before, too."""
        ...


class Calls(Generic[Work]):
    """A context for each call, which gives what the call works on.

    A call that breaks the rules rolls the session back.

    Args:
        processor: Whose session it is.
        work: What is called.
        roll_back: Rolls it back; the mutex is held around it.
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
                self._roll_back()
        finally:
            self._mutex.release()
            # After the release: whoever terminates this after it needs no help, and whoever did
            # before could not get the mutex.
            if self._terminated:
                self._give_up()

    def terminate(self) -> None:
        """Give the session up, from another thread; waits for nothing."""
        self._terminated = True
        self._give_up()

    def end(self) -> None:
        """Allow no further call: whoever runs the processor is done with it.

        What a thread that the processor left behind takes would be nobody's to give back.
        """
        self._ended = True
        self.terminate()

    @property
    def is_terminated(self) -> bool:
        """Say whether it was given up."""
        return self._terminated

    def _give_up(self) -> None:
        """Give everything back, unless a call is under way: then its end does."""
        if self._mutex.acquire(blocking=False):
            try:
                self._roll_back(whole=True)
            finally:
                self._mutex.release()

    def _given_up(self) -> Terminated:
        if self._ended:
            return Terminated(
                f"processor {self._processor}: a session ends with its trigger; use it on "
                "the thread that was triggered, and before that returns"
            )
        return Terminated(
            f"processor {self._processor} was terminated while this thread worked for it: "
            "its session was rolled back; end"
        )
