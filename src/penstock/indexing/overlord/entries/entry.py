"""One active task, as the task queue remembers it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.indexing.overlord.runner.runner import TaskEnd
    from penstock.indexing.taskspec import TaskSpec


class Stage(Enum):
    """How far an entry is: asking or waiting for locks, or handed to the runner."""

    WAITING = "waiting"
    HANDED = "handed"


@dataclass(slots=True)
class Entry:
    """One active task; `end` is set while its end is not stored yet.

    Attributes:
        handed_ms: When it had its locks first, None before that or if a former overlord saw it.
        running_ms: When it ran first, likewise.
    """

    task: TaskSpec
    created_ms: int
    number: int
    stage: Stage = Stage.WAITING
    end: TaskEnd | None = None
    handed_ms: int | None = None
    running_ms: int | None = None
