"""What the task queue is given and set to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import JsonValue

from penstock.indexing.events import NoEvents
from penstock.indexing.overlord.runner.runner import RunnerOptions

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.indexing.events import Events
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.ports import Lanes, WorkerDirectory
    from penstock.mailbox import MailboxProcessor
    from penstock.storage.metadata import MetadataStore


@dataclass(frozen=True, slots=True)
class TaskQueueOptions:
    """How the task queue behaves.

    Attributes:
        max_tasks: No more active tasks than this.
        payload_bytes_max: No task whose JSON is larger than this.
        storage_sync_interval_ms: How often the entries are compared with the metadata store.
        retry_ms: How long to wait before something that the store did not take is tried again.
        context: What new tasks have in their context where they say nothing else.
        runner: How workers are treated.
    """

    max_tasks: int = 20_000
    payload_bytes_max: int = 16 << 20
    storage_sync_interval_ms: int = 60_000
    retry_ms: int = 1_000
    context: Mapping[str, JsonValue] = field(default_factory=dict)
    runner: RunnerOptions = field(default_factory=RunnerOptions)


@dataclass(frozen=True, slots=True)
class QueuePorts:
    """What the task queue works with."""

    metadata: MetadataStore
    lockboxes: Lockboxes
    directory: WorkerDirectory
    lanes: Lanes
    processor: MailboxProcessor
    clock: Clock
    events: Events = field(default_factory=NoEvents)
