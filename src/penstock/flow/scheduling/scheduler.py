"""The scheduler: who runs now.

Owns, on one mailbox thread, all state of scheduling. Does not own queues, sessions or threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.flow.scheduling.lifecycle import ComponentState
from penstock.flow.scheduling.pool import TriggerPool
from penstock.flow.scheduling.schedulable import Schedulable
from penstock.flow.scheduling.statistics import ComponentStatistics, SchedulerStatistics
from penstock.flow.scheduling.strategy import Schedule

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.mailbox import MailboxProcessor


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Bounds of the scheduler.

    Attributes:
        threads: Runs and methods of the life cycle that may go on at once.
        component_threads: Of these, how many one component may have; 0: all but one, so that none
            can take them all.
        administrative_yield_ms: How long a component is left alone after an unexpected exception.
        start_limit_ms: How long `on_scheduled` may take before its thread is given up.
        start_retry_ms: How long after a start that failed the next is tried.
        invalid_retry_ms: The same for a component that is not valid; doubles up to
            `start_retry_ms`.
        rest_ms: How long a component is left alone that had work and did nothing; doubles up to
            `rest_max_ms`.
        rest_max_ms: The longest rest.
    """

    threads: int = 10
    component_threads: int = 0
    administrative_yield_ms: int = 1_000
    start_limit_ms: int = 60_000
    start_retry_ms: int = 30_000
    invalid_retry_ms: int = 500
    rest_ms: int = 10
    rest_max_ms: int = 1_000


class Scheduler:
    """Runs components when they have work, by event, timer or CRON.

    All methods may be called from any thread. Those that return a future are done when it is; it
    carries `NotFound` for an unknown id and `Conflict` for a state that forbids the request.

    Args:
        mailbox: Whose thread owns the state; its owner starts and stops it.
        pool: Where runs go.
        clock: The one of the mailbox.
        options: The bounds.
        on_state: Told, on the mailbox thread, of each new state of a component.
    """

    def __init__(
        self,
        mailbox: MailboxProcessor,
        pool: TriggerPool,
        *,
        clock: Clock,
        options: SchedulerOptions | None = None,
        on_state: Callable[[str, ComponentState], None] | None = None,
    ) -> None:
        raise NotImplementedError

    def add(self, component_id: str, component: Schedulable, schedule: Schedule) -> Future[None]:
        """Take a component in, stopped."""
        raise NotImplementedError

    def remove(self, component_id: str) -> Future[None]:
        """Forget a component that is stopped or disabled."""
        raise NotImplementedError

    def reschedule(self, component_id: str, schedule: Schedule) -> Future[None]:
        """Change a schedule; of a running component, too: runs under way go on."""
        raise NotImplementedError

    def start(self, component_id: str) -> Future[None]:
        """Have a component run; done when the request is taken, tried until it succeeds."""
        raise NotImplementedError

    def stop(self, component_id: str) -> Future[None]:
        """Have a component run no more; done when it is stopped, with no thread in it."""
        raise NotImplementedError

    def run_once(self, component_id: str) -> Future[None]:
        """Start a stopped component for one run, if it has work; done when it is stopped again."""
        raise NotImplementedError

    def terminate(self, component_id: str) -> Future[None]:
        """Give up the threads of a component that does not stop; done at once, it is stopped."""
        raise NotImplementedError

    def enable(self, component_id: str) -> Future[None]:
        """Let a disabled component be started."""
        raise NotImplementedError

    def disable(self, component_id: str) -> Future[None]:
        """Keep a stopped component from being started."""
        raise NotImplementedError

    def recheck(self, component_id: str) -> Future[None]:
        """Validate a component that could not be started now, not at its next time."""
        raise NotImplementedError

    def wake(self, component_id: str) -> None:
        """Say that work arrived for a component, or that there is room for what it makes.

        Cheap, from any thread; an unknown id is ignored.
        """
        raise NotImplementedError

    def waker(self, component_id: str) -> Callable[[], None]:
        """Return what does `wake` for one component without looking it up.

        Raises:
            NotFound: There is no such component; wait for the future of `add` first.
        """
        raise NotImplementedError

    def limit_group(self, group: str, threads: int | None) -> Future[None]:
        """Bound the threads of all components of a process group; None: no bound."""
        raise NotImplementedError

    def resize(self, threads: int) -> Future[None]:
        """Change how many runs may go on at once; runs under way are not stopped."""
        raise NotImplementedError

    def statistics(self) -> Future[SchedulerStatistics]:
        """Return a snapshot of all."""
        raise NotImplementedError

    def component_statistics(self, component_id: str) -> Future[ComponentStatistics]:
        """Return a snapshot of one component."""
        raise NotImplementedError
