"""Ports and options of the task queue."""

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
    """Options of the task queue.

    Attributes:
        max_tasks: Maximum number of active tasks.
        payload_bytes_max: Maximum size of a task's JSON, in bytes.
        storage_sync_interval_ms: Interval of the comparisons with the metadata store.
        retry_ms: Delay before a retry after a failure of the store.
        context: Default context of new tasks.
        runner: Options of the runner.
    """

    max_tasks: int = 20_000
    payload_bytes_max: int = 16 << 20
    storage_sync_interval_ms: int = 60_000
    retry_ms: int = 1_000
    context: Mapping[str, JsonValue] = field(default_factory=dict)
    runner: RunnerOptions = field(default_factory=RunnerOptions)


@dataclass(frozen=True, slots=True)
class QueuePorts:
    """Dependencies of the task queue."""

    metadata: MetadataStore
    lockboxes: Lockboxes
    directory: WorkerDirectory
    lanes: Lanes
    processor: MailboxProcessor
    clock: Clock
    events: Events = field(default_factory=NoEvents)
