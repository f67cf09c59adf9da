"""Blocking calls of a batch task: tried again while nobody answers, given up when it is stopped.

An engine that is not there is waited for without end: that is nothing of the task's. One that
breaks down over the task's work, time and again, may do so because of that work; it is given up
then, as it takes its neighbours' work along each time. So is work whose input does not answer: its
name may be wrong, and it has a slot.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import PenstockError, Unavailable
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

    def pause_ms(self, error: Unavailable) -> int:
        """Note why a try failed and return the least time until the next.

        Raises:
            EngineFailure: The engine was lost too often, or the input did not answer as often.
        """
        kind = _kind_of(error)
        if kind is None:
            return 0
        self._counts[kind] += 1
        try:
            self._folder.write_json(self._file, dict(self._counts))
        except Unavailable as full:
            _log.warning("a peon that is started again will not know of this loss: %s", full)
        count = self._counts[kind]
        if count >= LOSSES_MAX:
            raise EngineFailure(_given_up(kind, count, error)) from error
        _log.warning("the %s was lost for the %d. time: %s", kind, count, error)
        return int(self._chance() * _LOST_PAUSES.delay_ms(count))


def _kind_of(error: Unavailable) -> str | None:
    if isinstance(error, InputUnavailable):
        return _INPUT
    return _ENGINE if isinstance(error, EngineLost) else None


def _given_up(kind: str, count: int, error: Unavailable) -> str:
    if kind == _INPUT:
        return (
            f"the input did not answer {count} times, at last: {error}. See to its host, or correct"
            " the input; then submit the task again"
        )
    return (
        f"the engine was lost {count} times over this work, at last: {error}."
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
    """

    def __init__(self, actions: ActionClient, clock: Clock, retry: Retry | None = None) -> None:
        self._actions = actions
        self._clock = clock
        self._retry = retry or Retry(100, 10_000)
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
        failed: Callable[[Unavailable], int] | None = None,
    ) -> T:
        """Return what `work` returns, however long nobody answers.

        Args:
            what: For logs.
            work: What to do.
            failed: Told of each `Unavailable`; returns the least pause in milliseconds, or raises
                what ends the call.

        Raises:
            Stopped: The task was stopped; `work` was not begun, or it failed.
            PenstockError: Whatever else than `Unavailable` the work raises.
        """
        failures = 0
        while True:
            self.check()
            try:
                return work()
            except Unavailable as error:
                self.check()
                failures += 1
                delay_ms = self._retry.delay_ms(failures)
                if failed is not None:
                    delay_ms = max(delay_ms, failed(error))
                _log.info("%s: trying again in %d ms: %s", what, delay_ms, error)
            self.pause(delay_ms)

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
