"""Overlords on one thread and virtual time over a real store, without workers."""

from __future__ import annotations

from mailbox_kit import InlineLanes, settle
from metadata_kit import MemoryMetadata

from penstock.indexing.overlord import Overlord, OverlordPorts
from penstock.mailbox import MailboxProcessor
from penstock.testing.clock import VirtualClock


class TermWorld:
    """A mailbox for overlords, and the store that they lead by."""

    def __init__(self, folder) -> None:
        self.clock = VirtualClock()
        self.metadata = MemoryMetadata(self.clock)
        self.processor = MailboxProcessor(name="overlord", clock=self.clock)

    def make(self, **ports) -> Overlord:
        """Return an overlord that has not begun, with these ports beside the usual ones."""
        lanes = InlineLanes()
        made = OverlordPorts(
            metadata=self.metadata,
            broker=None,
            peons=None,
            workers=self,
            lanes=lanes,
            lock_lanes=lanes,
            clock=self.clock,
            new_token=lambda: "token",
            **ports,
        )
        return Overlord(self.processor, made)

    def workers(self):
        return ()

    def settle(self, seconds: float = 0) -> None:
        settle(self.processor, self.clock, seconds)

    def ask(self, future):
        self.settle()
        return future.result(0)
