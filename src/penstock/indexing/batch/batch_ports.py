"""The ports of a batch task."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.core.waits import DependencyWait
    from penstock.indexing.batch.batch_engine import BatchEngine
    from penstock.indexing.ports import ActionClient


class AttemptStore(Protocol):
    """Deep storage, as used by batch tasks."""

    def probe(self) -> None:
        """Check that the store answers. Raises Unavailable if it does not."""
        ...

    def attempt_folder(self, datasource: str, task_id: str, attempt: str) -> str:
        """Return the output folder of one call of the engine; it is never returned twice."""
        ...

    def load_spec_of(self, uri: str) -> Mapping[str, object]:
        """Return the load spec of a file that the engine wrote."""
        ...

    def rebased(self, location: str) -> str:
        """Return the current location of a file from its location as stored earlier."""
        ...

    def current(self, load_spec: Mapping[str, object]) -> Mapping[str, object]:
        """Return a load spec, as stored earlier, in the current form."""
        ...

    def location(self, load_spec: Mapping[str, object]) -> str:
        """Return the location by which the engine reads a segment's file."""
        ...

    def kill(self, load_spec: Mapping[str, object]) -> None:
        """Delete a file; a missing one is ignored."""
        ...


@dataclass(frozen=True, slots=True)
class BatchPorts:
    """The ports of a batch task.

    `new_token` returns unique texts, `chance` random numbers from 0 up to 1. `waits_changed` is
    called with the dependencies that the task waits for, whenever they change.
    """

    engine: BatchEngine
    actions: ActionClient
    store: AttemptStore
    clock: Clock
    new_token: Callable[[], str]
    chance: Callable[[], float] = field(default_factory=lambda: random.SystemRandom().random)
    waits_changed: Callable[[tuple[DependencyWait, ...]], None] = lambda _waits: None
