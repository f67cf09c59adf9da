"""Options of a flow controller."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core.errors import InvalidRequest
from penstock.flow.repository.options import RepositoryOptions
from penstock.flow.scheduling.options import SchedulerOptions
from penstock.storage.content.options import ContentOptions


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """Limits and intervals of a running flow.

    Attributes:
        heap_bytes: Approximate limit of the memory for FlowFiles of all queues; more are swapped
            out.
        stop_limit_s: How long a change waits for processors to stop before it is refused.
        close_limit_s: How long `close` waits for processors to stop before it abandons them.
        expire_every_ms: Interval of the search for expired FlowFiles in queues that no component
            polls.
        bulletins: Number of bulletins to keep.
        scheduler: Options of the scheduler.
        repository: Options of the FlowFile repository.
        content: Options of the content repository.
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
                raise InvalidRequest(
                    f"is {getattr(self, name)}, but must be at least 1", place=name
                )
