"""Duties: work that is due every so often while an overlord leads.

Owns when they run: each on a lane of its own, never twice at a time, tried again later if it
fails. What a duty does is its own module's.
"""

from __future__ import annotations

import logging
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from penstock.core.errors import Unavailable
from penstock.indexing.errand import Errand, Retry
from penstock.indexing.events import NoEvents

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from penstock.core.clock import Clock
    from penstock.core.waits import WaitTable
    from penstock.indexing.events import Events
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.overlord.taskindex import TaskIndex
    from penstock.indexing.ports import Lanes
    from penstock.indexing.taskspec import TaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.mailbox.timers import Timer
    from penstock.storage.metadata import MetadataStore

T = TypeVar("T")

_log = logging.getLogger(__name__)

_ANSWER_S: Final = 30.0
_RETRY_MS: Final = 60_000


class Duty(Protocol):
    """One duty."""

    @property
    def name(self) -> str:
        """What it is called in the log; also its lane."""
        ...

    @property
    def interval_ms(self) -> int:
        """How often it is due."""
        ...

    def run(self) -> None:
        """Do one round. Blocks, on a lane; what fails is left for the next round.

        Raises:
            PenstockError: The round was cut.
        """
        ...


def answered(future: Future[T]) -> T:
    """Return what a mailbox or a lane answers to a duty, or raise what it raises.

    Raises:
        Unavailable: It did not come to it in time, or it ended first.
    """
    try:
        return future.result(_ANSWER_S)
    except (FutureTimeoutError, CancelledError):  # narrow: translates; the question is void
        future.cancel()
        raise Unavailable("the overlord is busy or ends: the next round asks again") from None


def before_all_tasks(metadata: MetadataStore, time_ms: int, clocks_apart_ms: int) -> int:
    """Return a time, or an earlier one, such that no active task is as old.

    What was of no use to anybody since then, no task can still come back to.

    Args:
        metadata: Knows the active tasks.
        time_ms: The latest time.
        clocks_apart_ms: A task, and what is compared with it, may have their times from two clocks,
            which differ by less than this.

    Raises:
        Unavailable: The metadata store does not answer.
    """
    oldest_ms = metadata.tasks.oldest_active_ms()
    return time_ms if oldest_ms is None else min(time_ms, oldest_ms - clocks_apart_ms)


@dataclass(frozen=True, slots=True)
class DutyTools:
    """What duties of one term work with, from their lanes.

    Attributes:
        metadata: Refuses writes when the term is over.
        lockboxes: Which times are locked, for `locked_intervals`.
        index: The active tasks.
        submit: Has a task run; the future raises as `TaskQueue.add`.
        slots: Tells how many tasks all workers run at most.
        clock: The time.
        new_token: Gives texts that were never given before.
        task_context: What the context of a task is taken to say that does not say it.
        events: What operators are told.
    """

    metadata: MetadataStore
    lockboxes: Lockboxes
    index: TaskIndex
    submit: Callable[[TaskSpec], Future[None]]
    slots: Callable[[], Future[int]]
    clock: Clock
    new_token: Callable[[], str]
    task_context: Mapping[str, object] = field(default_factory=dict)
    events: Events = field(default_factory=NoEvents)


class DutyRounds:
    """Runs duties while a term lasts. On the overlord's mailbox."""

    def __init__(
        self,
        duties: Sequence[Duty],
        lanes: Lanes,
        processor: MailboxProcessor,
        waits: WaitTable,
    ) -> None:
        self._errands = [
            (
                duty,
                Errand(
                    duty.name,
                    duty.name,
                    lanes,
                    processor,
                    retry=_retry(duty.interval_ms),
                    on_failure=partial(_failed, duty.name),
                    waits=waits,
                ),
            )
            for duty in duties
        ]
        self._processor = processor
        self._timers: list[Timer] = []
        self._stopped = False  # one word, read on the lanes

    def start(self) -> None:
        """Begin."""
        for duty, errand in self._errands:
            self._timers.append(
                self._processor.timers.schedule_every(
                    duty.interval_ms, partial(self._begin, duty, errand), duty.name
                )
            )

    def stop(self) -> None:
        """Begin no more rounds, nor one that failed again; one that runs is not waited for."""
        self._stopped = True
        for timer in self._timers:
            timer.cancel()

    def _begin(self, duty: Duty, errand: Errand) -> None:
        if not errand.busy:
            errand.start(partial(self._round, duty), lambda _none: None)

    def _round(self, duty: Duty) -> None:
        if not self._stopped:
            duty.run()


def _retry(interval_ms: int) -> Retry:
    """Return when what failed is tried again: soon where it is due often, for someone waits."""
    first_ms = min(interval_ms, _RETRY_MS)
    return Retry(first_ms, 10 * first_ms)


def _failed(name: str, error: Exception) -> None:
    _log.warning("the duty %s failed: %s", name, error)
