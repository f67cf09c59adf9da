"""What the runner is given, tells and is set to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.indexing.overlord.runner.blacklist import BlacklistOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.indexing.ports import TaskState
    from penstock.indexing.taskspec import TaskSpec


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How the runner behaves.

    Attributes:
        sync_interval_ms: How often the workers are listed, and how long a worker that had nothing
            to say is left alone.
        long_poll_ms: How long a question for changes may wait at a worker, at most.
        worker_timeout_ms: A worker that did not answer for so long is lost, and its tasks failed.
        handovers_max: Tasks that one worker is asked to take and has not said yes to.
        parallel_slot_ratio: Share of a worker's slots for tasks of type `index_parallel`.
        worker_version_min: Workers of an older version get no tasks.
        blacklist: When a worker gets no more tasks for a while.
    """

    sync_interval_ms: int = 1_000
    long_poll_ms: int = 20_000
    worker_timeout_ms: int = 120_000
    handovers_max: int = 4
    parallel_slot_ratio: float = 1.0
    worker_version_min: str = "0"
    blacklist: BlacklistOptions = field(default_factory=BlacklistOptions)

    @property
    def question_ms(self) -> int:
        """How long a question waits: a worker that has nothing to say must not seem lost."""
        return min(self.long_poll_ms, self.worker_timeout_ms // 4)


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How a task ended; `worker` is None for one that was with none."""

    task_id: str
    state: TaskState
    error: str
    worker: str | None


class RunnerListener(Protocol):
    """The queue, as the runner sees it; on the mailbox thread."""

    def wanted(self, task_id: str) -> TaskSpec | None:
        """Return a task that is active, whether or not the runner has it."""
        ...

    def placed(self, workers: Mapping[str, str | None]) -> None:
        """Store which worker each task is about to be handed to; None: it waits for any again.

        Raises:
            PenstockError: It cannot be stored: nothing may be handed over.
        """
        ...

    def changed(self, task_id: str) -> None:
        """Something that is shown of a task changed."""
        ...

    def lost(self, worker: str, reason: str, tasks: int) -> None:
        """A worker is lost, and so are its tasks; told once until it is heard again."""
        ...

    def ended(self, ends: Sequence[TaskEnd]) -> None:
        """Tasks have ended. The runner keeps them until it is told to drop them."""
        ...
