"""What a flow controller is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core.errors import InvalidRequest
from penstock.flow.repository.options import RepositoryOptions
from penstock.flow.scheduling.options import SchedulerOptions
from penstock.storage.content.options import ContentOptions


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """The bounds of a flow at work.

    Attributes:
        heap_bytes: FlowFiles of all queues in memory, about; more are swapped out.
        stop_limit_s: How long a change waits for processors to stop before it is refused.
        close_limit_s: How long the end waits for processors to stop before it leaves them.
        expire_every_ms: How often queues are searched for expired FlowFiles that nobody polls.
        bulletins: Messages of components that are kept.
        scheduler: Of the scheduler.
        repository: Of the FlowFile repository.
        content: Of the content repository.
    """

    heap_bytes: int = 256 << 20
    stop_limit_s: float = 30.0
    close_limit_s: float = 10.0
    expire_every_ms: int = 30_000
    bulletins: int = 1_000
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    repository: RepositoryOptions = field(default_factory=RepositoryOptions)
    content: ContentOptions = field(default_factory=ContentOptions)

    def __post_init__(self) -> None:
        for name in ("heap_bytes", "expire_every_ms", "bulletins"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"is {getattr(self, name)}: must be at least 1", place=name)
