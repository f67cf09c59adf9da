"""Overlords on one thread and virtual time over a real store, without workers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, cast

from penstock.indexing.overlord import Overlord, OverlordPorts
from penstock.indexing.ports import BrokerPort, TaskClient, WorkerClient
from penstock.mailbox import MailboxProcessor
from penstock.testing.clock import VirtualClock
from tests.harness.mailbox_kit import InlineLanes, settle
from tests.harness.metadata_kit import MemoryMetadata

Answer = TypeVar("Answer")


class TermWorld:
    """A mailbox for overlords, and the store that they lead by."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.metadata = MemoryMetadata(self.clock)
        self.processor = MailboxProcessor(name="overlord", clock=self.clock)

    def make(self, **ports: Any) -> Overlord:
        """Return an overlord that has not begun, with these ports beside the usual ones."""
        lanes = InlineLanes()
        made = OverlordPorts(
            metadata=self.metadata,
            broker=cast("BrokerPort", None),  # these overlords read no topics
            peons=cast("TaskClient", None),  # and have no workers
            workers=self,
            lanes=lanes,
            lock_lanes=lanes,
            clock=self.clock,
            new_token=lambda: "token",
            **ports,
        )
        return Overlord(self.processor, made)

    def workers(self) -> Sequence[WorkerClient]:
        return ()

    def settle(self, seconds: float = 0) -> None:
        settle(self.processor, self.clock, seconds)

    def ask(self, future: Future[Answer]) -> Answer:
        self.settle()
        return future.result(0)
