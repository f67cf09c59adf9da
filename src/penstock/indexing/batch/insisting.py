"""Blocking calls of a batch task: tried again while nobody answers, given up when it is stopped.

An engine that is not there is waited for without end: that is nothing of the task's. One that
breaks down over the task's work, time and again, may do so because of that work; it is given up
then, as it takes its neighbours' work along each time. So is work whose input does not answer: its
name may be wrong, and it has a slot.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import PenstockError, Unavailable, counted
from penstock.core.waits import DependencyWait
from penstock.indexing.engine import EngineFailure, EngineLost, InputUnavailable
from penstock.indexing.errand import Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.indexing.ports import ActionClient, TaskAction
    from penstock.indexing.task.folder import TaskFolder

T = TypeVar("T")
R = TypeVar("R")

LOSSES_MAX: Final = 20
"""So often the engine may be lost over one piece of work, or its input not answer."""

_LOST_PAUSES: Final = Retry(1_000, 600_000)

_ENGINE: Final = "engine"
_INPUT: Final = "input"

_log = logging.getLogger(__name__)


class Stopped(PenstockError):
    """The task was told to stop; what it has done so far is kept in its folder."""


@dataclass(frozen=True, slots=True)
class Setback:
    """What follows from a try that failed.

    Attributes:
        pause_ms: Least time until the next.
        failures: How often it failed in this way; 0: nobody counts.
        failures_max: So often it may; 0: any number of times.
        end: Ends the work, if it failed too often.
    """

    pause_ms: int = 0
    failures: int = 0
    failures_max: int = 0
    end: PenstockError | None = None


class Losses:
    """How often one piece of work was tried in vain, and when to try again. One thread.

    Counts tries over which the engine was lost, and those in which an input did not answer; they
    stand in the task's folder, so a peon that is started again counts on.

    Who shares an engine with the work that breaks it is lost with it, and no less often as long as
    both begin again at once. So pauses grow up to ten minutes, each by chance between none and all
    of that: work that is innocent is done in one of its neighbour's long before it has used up its
    tries.

    Args:
        chance: Gives numbers from 0 up to 1.
        folder: The task's.
        number: Of the work, among the task's.
    """

    def __init__(self, chance: Callable[[], float], folder: TaskFolder, number: int = 0) -> None:
        self._chance = chance
        self._folder = folder
        self._file = f"losses-{number}.json"
        kept = folder.read_json(self._file) or {}
        self._counts = {name: _count(kept.get(name)) for name in (_ENGINE, _INPUT)}

    def note(self, error: Unavailable) -> Setback:
        """Note why a try failed and return what follows.

        The end is an `EngineFailure`: the engine was lost too often, or the input did not answer
        as often.
        """
        kind = _kind_of(error)
        if kind is None:
            return Setback()
        self._counts[kind] += 1
        try:
            self._folder.write_json(self._file, dict(self._counts))
        except Unavailable as full:
            _log.warning("a peon that is started again will not know of this loss: %s", full)
        count = self._counts[kind]
        if count >= LOSSES_MAX:
            return Setback(0, count, LOSSES_MAX, EngineFailure(_given_up(kind, count, error)))
        _log.warning("the %s was lost for the %d. time: %s", kind, count, error)
        return Setback(int(self._chance() * _LOST_PAUSES.delay_ms(count)), count, LOSSES_MAX)


def _kind_of(error: Unavailable) -> str | None:
    if isinstance(error, InputUnavailable):
        return _INPUT
    return _ENGINE if isinstance(error, EngineLost) else None


def _given_up(kind: str, count: int, error: Unavailable) -> str:
    if kind == _INPUT:
        return (
            f"the input did not answer {counted(count, 'time')}, at last: {error}. See to its host,"
            " or correct the input; then submit the task again"
        )
    return (
        f"the engine was lost {counted(count, 'time')} over this work, at last: {error}."
        " Give Spark more memory (--spark-memory), or the task less to do: a shorter"
        " interval, fewer files at once, fewer rows per segment; then submit it again"
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


class Insistence:
    """Runs calls of one task until they succeed; `stop` is for any thread.

    The condition's mutex guards the flag that the task's thread waits on.

    Args:
        actions: The overlord.
        clock: Measures the waits.
        retry: How long to wait when nobody answers.
        told: Called with the wait after each failed try, and with None once a try succeeds.
    """

    def __init__(
        self,
        actions: ActionClient,
        clock: Clock,
        retry: Retry | None = None,
        told: Callable[[DependencyWait | None], None] = lambda _wait: None,
    ) -> None:
        self._actions = actions
        self._clock = clock
        self._retry = retry or Retry(100, 10_000)
        self._told = told
        self._changed = threading.Condition()
        self._stopped = False

    @property
    def is_stopped(self) -> bool:
        """Whether the task was told to stop."""
        return self._stopped

    def stop(self) -> None:
        """Have the call under way be the last."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def ask(self, what: str, action: TaskAction[R]) -> R:
        """Return the overlord's answer to an action. Raises as `call`."""
        return self.call(what, lambda: self._actions.perform(action))

    def call(
        self,
        what: str,
        work: Callable[[], T],
        failed: Callable[[Unavailable], Setback] = lambda _error: Setback(),
    ) -> T:
        """Return what `work` returns, however long nobody answers.

        Args:
            what: For logs, and for who asks.
            work: What to do.
            failed: Told of each `Unavailable`; says what follows.

        Raises:
            Stopped: The task was stopped; `work` was not begun, or it failed.
            PenstockError: Whatever else than `Unavailable` the work raises, and what follows from
                one that was one too many.
        """
        failures, since_ms = 0, 0
        while True:
            self.check()
            try:
                done = work()
            except Unavailable as error:
                self.check()
                failures += 1
                since_ms = since_ms or self._clock.now_ms()
                wait = DependencyWait(error.dependency, what, since_ms, failures, str(error))
                delay_ms = self._set_back(wait, failed(error), error)
            except BaseException:
                if failures:
                    self._told(None)
                raise
            else:
                if failures:
                    self._told(None)
                return done
            self.pause(delay_ms)

    def _set_back(self, wait: DependencyWait, after: Setback, error: Unavailable) -> int:
        """Report a failed try and return the delay before the next; raise what ends the work."""
        delay_ms = max(self._retry.delay_ms(wait.tries), after.pause_ms)
        next_ms = None if after.end is not None else self._clock.now_ms() + delay_ms
        tries = after.failures or wait.tries
        self._told(replace(wait, tries=tries, tries_max=after.failures_max, next_ms=next_ms))
        if after.end is not None:
            raise after.end from error
        _log.info("%s: trying again in %d ms: %s", wait.work, delay_ms, error)
        return delay_ms

    def check(self) -> None:
        """Raise `Stopped` if the task was stopped."""
        if self._stopped:
            raise Stopped("the task was stopped")

    def pause(self, delay_ms: int) -> None:
        """Wait.

        Raises:
            Stopped: The task was stopped meanwhile.
        """
        until_s = self._clock.monotonic_s() + delay_ms / 1000
        with self._changed:
            while not self._stopped and (left_s := until_s - self._clock.monotonic_s()) > 0:
                self._clock.wait(self._changed, left_s)
        self.check()
