"""Entry of an active task in the task queue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.indexing.overlord.runner.runner import TaskEnd
    from penstock.indexing.task_spec import TaskSpec


class Stage(Enum):
    """Stage of an entry: acquiring its locks, or handed to the runner."""

    WAITING = "waiting"
    HANDED = "handed"


@dataclass(slots=True)
class QueuedTask:
    """An active task; `end` is set while its end is not stored yet.

    Attributes:
        handed_ms: When it first had its locks; None before that, or if that was in another term.
        running_ms: When it first ran; likewise None.
    """

    task: TaskSpec
    created_ms: int
    number: int
    stage: Stage = Stage.WAITING
    end: TaskEnd | None = None
    handed_ms: int | None = None
    running_ms: int | None = None
