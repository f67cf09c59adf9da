"""What a batch task works with."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.core.waits import DependencyWait
    from penstock.indexing.batch.engine import BatchEngine
    from penstock.indexing.ports import ActionClient


class AttemptStore(Protocol):
    """Deep storage, as batch tasks see it."""

    def probe(self) -> None:
        """Return if the store answers. Raises Unavailable if it does not."""
        ...

    def attempt_folder(self, datasource: str, task_id: str, attempt: str) -> str:
        """Return where one call of the engine writes; the same place is never given twice."""
        ...

    def load_spec_of(self, uri: str) -> Mapping[str, object]:
        """Return how a file that the engine wrote is fetched."""
        ...

    def rebased(self, location: str) -> str:
        """Return where a file is now whose location was written down earlier."""
        ...

    def current(self, load_spec: Mapping[str, object]) -> Mapping[str, object]:
        """Return a load spec that was written down earlier in the form that is written today."""
        ...

    def location(self, load_spec: Mapping[str, object]) -> str:
        """Return what the engine reads a segment's file by."""
        ...

    def kill(self, load_spec: Mapping[str, object]) -> None:
        """Delete a file; one that is gone is fine."""
        ...


@dataclass(frozen=True, slots=True)
class BatchPorts:
    """What a batch task works with.

    `new_token` gives texts that were never given before, `chance` numbers from 0 up to 1.
    `waits_changed` is called with what the task waits for, each time that changes.
    """

    engine: BatchEngine
    actions: ActionClient
    store: AttemptStore
    clock: Clock
    new_token: Callable[[], str]
    chance: Callable[[], float] = field(default_factory=lambda: random.SystemRandom().random)
    waits_changed: Callable[[tuple[DependencyWait, ...]], None] = lambda _waits: None
