"""Duties: periodic work while an overlord leads.

Schedules the duties: each runs on its own lane, at most once at a time, and is retried after a
failure. Each duty's work is in its own module.
"""

from __future__ import annotations

import logging
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import Unavailable
from penstock.indexing.operator_events import NoEvents
from penstock.mailbox.background_calls import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from penstock.core.clock import Clock
    from penstock.core.waits import WaitTable
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.operator_events import Events
    from penstock.indexing.overlord.task_index import TaskIndex
    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.mailbox.lanes import Lanes
    from penstock.mailbox.timers import Timer
    from penstock.storage.metadata import MetadataStore

T = TypeVar("T")

_log = logging.getLogger(__name__)

_ANSWER_S: Final = 30.0
_RETRY_MS: Final = 60_000


class Duty(Protocol):
    """One kind of periodic work."""

    @property
    def name(self) -> str:
        """Name in the log and of its lane."""
        ...

    @property
    def interval_ms(self) -> int:
        """Period in milliseconds."""
        ...

    def run(self) -> None:
        """Run one round. Blocks, on a lane; the next round retries failed work.

        Raises:
            PenstockError: The round was aborted.
        """
        ...


def answered(future: Future[T]) -> T:
    """Return the result of a mailbox or a lane for a duty, or raise its error.

    Raises:
        Unavailable: The answer did not arrive in time, or the mailbox or lane was closed first.
    """
    try:
        return future.result(_ANSWER_S)
    except (FutureTimeoutError, CancelledError):  # narrow: translates; the call is cancelled
        future.cancel()
        raise Unavailable("the overlord is busy or stopping: the next round retries") from None


def before_all_tasks(metadata: MetadataStore, time_ms: int, clocks_apart_ms: int) -> int:
    """Return `time_ms`, or an earlier time before which no active task was created.

    Data that has been unused since then cannot be needed by any task.

    Args:
        metadata: The store of the active tasks.
        time_ms: The latest time to return.
        clocks_apart_ms: Upper bound of the difference of two clocks, since the times of a task and
            of the data compared with it may come from different clocks.

    Raises:
        Unavailable: The metadata store does not answer.
    """
    oldest_ms = metadata.tasks.oldest_active_ms()
    return time_ms if oldest_ms is None else min(time_ms, oldest_ms - clocks_apart_ms)


@dataclass(frozen=True, slots=True)
class DutyTools:
    """Dependencies of the duties of one term, to be used on their lanes.

    Attributes:
        metadata: The metadata store, which refuses writes after the term is over.
        lockboxes: The locks, for `locked_intervals`.
        index: The active tasks.
        submit: Submits a task; the future raises as `TaskQueue.add`.
        slots: Returns the number of slots of all workers.
        clock: The clock.
        new_token: Returns a unique string.
        task_context: Default context of tasks.
        events: Reports events to operators.
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
    """Runs duties during a term. On the overlord's mailbox."""

    def __init__(
        self,
        duties: Sequence[Duty],
        lanes: Lanes,
        processor: MailboxProcessor,
        waits: WaitTable,
    ) -> None:
        self._calls = [
            (
                duty,
                BackgroundCall(
                    duty.name,
                    duty.name,
                    lanes,
                    processor,
                    retry=_retry(duty.interval_ms),
                    waits=waits,
                ),
            )
            for duty in duties
        ]
        self._processor = processor
        self._timers: list[Timer] = []
        self._stopped = False  # Read on the lanes.

    def start(self) -> None:
        """Start the timers of the duties."""
        for duty, call in self._calls:
            self._timers.append(
                self._processor.timers.schedule_every(
                    duty.interval_ms, partial(self._begin, duty, call), duty.name
                )
            )

    def stop(self) -> None:
        """Stop starting rounds and retries, without waiting for a running round."""
        self._stopped = True
        for timer in self._timers:
            timer.cancel()

    def _begin(self, duty: Duty, call: BackgroundCall) -> None:
        if not call.busy:
            call.start(partial(self._round, duty), lambda _none: None, partial(_failed, duty.name))

    def _round(self, duty: Duty) -> None:
        if not self._stopped:
            duty.run()


def _retry(interval_ms: int) -> RetryPolicy:
    """Return the retry delays of a duty: short for a short period, whose results are awaited."""
    first_ms = min(interval_ms, _RETRY_MS)
    return RetryPolicy(first_ms, 10 * first_ms)


def _failed(name: str, error: Exception) -> None:
    _log.warning("the duty %s failed: %s", name, error)
