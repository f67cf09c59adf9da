"""The committed offsets of a supervisor, and the topic that they are of.

On the overlord's mailbox, over the metadata store: as last read, and the ways in which a supervisor
moves them. Publishes move them too, from other threads. Does not own which tasks run.

Invariant: offsets mean something in one topic only, so its id is committed beside them. A topic
that was deleted and made again under its name has another id; all offsets are replaced then, at
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import counted
from penstock.indexing.supervisor.groups import first_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.indexing.batches import Available
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.supervisor.groups import StartPlan
    from penstock.indexing.supervisor.streamwatch import StreamWatch
    from penstock.storage.metadata import MetadataStore

_READ_EVERY_S: Final = 30.0


class Committed:
    """The committed offsets of one supervisor; its methods raise what the metadata store raises.

    Args:
        supervisor_id: Whose they are.
        metadata: Where they are.
        topic: The topic as it is seen.
    """

    def __init__(self, supervisor_id: str, metadata: MetadataStore, topic: StreamWatch) -> None:
        self._supervisor_id = supervisor_id
        self._metadata = metadata
        self._topic = topic
        self.offsets: dict[int, int] = {}
        self.topic_id = ""
        self._seen = -1
        self._read_again_s = 0.0

    @property
    def is_left_behind(self) -> bool:
        """Whether their topic was deleted, and another has its name by now."""
        return self._topic.is_another(self.topic_id)

    @property
    def to_keep(self) -> Offsets:
        """From where on messages of the topic that is there are still to be read."""
        if self.is_left_behind:
            return {p: a.earliest for p, a in (self._topic.available or {}).items()}
        return self.offsets

    def refresh(self, now_s: float) -> None:
        """Read them again if they may be others by now: a round of each second asks for it.

        That is after a write in this leader's term; and each half a minute, in case somebody writes
        who must not.
        """
        moved = self._metadata.last_move(self._supervisor_id) != self._seen
        if moved or now_s >= self._read_again_s:
            self.read()
            self._read_again_s = now_s + _READ_EVERY_S

    def read(self) -> None:
        """Read them again."""
        # Before, not after: what is written while they are read is read at the next look.
        seen = self._metadata.last_move(self._supervisor_id)
        found = self._metadata.committed(self._supervisor_id)
        self.offsets = {} if found is None else dict(found.offsets)
        self.topic_id = "" if found is None else found.topic_id
        self._seen = seen

    def begin(self, *, earliest: bool) -> None:
        """Commit first offsets, where the topic has stream partitions without, and its id.

        Args:
            earliest: Whether the first ones of all are the earliest, or the ends.
        """
        available = self._topic.available or {}
        first = first_offsets(available, self.offsets or None, earliest=earliest)
        # Offsets of before there were ids are taken to be of the topic that is there.
        if first or (self._topic.id and not self.topic_id):
            self._metadata.begin_offsets(self._supervisor_id, first, self._topic.id)
            self.read()

    def begin_at(self, first: Offsets) -> None:
        """Commit these first offsets, where stream partitions have none."""
        if first.keys() - self.offsets.keys():
            self._metadata.begin_offsets(self._supervisor_id, first, self._topic.id)
            self.read()

    def move(self, offsets: Offsets) -> None:
        """Set those of some stream partitions."""
        self._metadata.move_offsets(self._supervisor_id, offsets)
        self.read()

    def skip(self, plan: StartPlan, available: Mapping[int, Available]) -> Offsets | None:
        """Go on at what is there, where a plan's messages are gone; None if that must wait.

        What lies before the missing messages is published first: it could not be any more behind
        them.
        """
        gone = plan.gone(available)
        if any(plan.start[p] != self.offsets.get(p) for p in gone):
            return None
        wanted = {p: available[p].earliest for p in gone}
        if plan.end is not None:
            if any(wanted[p] <= plan.start[p] for p in gone):
                return None  # The topic was made anew; the task behind finds that out, and fails.
            wanted = {p: min(offset, plan.end[p]) for p, offset in wanted.items()}
        self.move(wanted)
        return wanted

    def reset(self, offsets: Offsets, *, earliest: bool) -> None:
        """Set all, in the topic as it is now.

        Args:
            offsets: Those of some stream partitions.
            earliest: Whether those of the others are the earliest, or the ends.
        """
        wanted = None
        if self._topic.available is not None:
            # Explicit ones, so that a publish that is under way just now cannot match.
            first = first_offsets(self._topic.available, None, earliest=earliest)
            wanted = {**first, **offsets}
        self._metadata.reset_offsets(self._supervisor_id, wanted, self._topic.id)
        self.read()

    def begin_successor(self) -> str:
        """Go on at the start of the topic that has the name by now; return the story.

        From here on publishes of the old one are refused.
        """
        was, now, old = self.topic_id, self._topic.id, self.offsets
        # What came to it before it was seen is new to everybody, wherever first offsets are.
        first = first_offsets(self._topic.available or {}, {}, earliest=True)
        self._metadata.begin_topic(self._supervisor_id, was, now, first)
        self.read()
        unread = self._topic.unread(old)
        lost = f", and {counted(unread, 'message')} more went with it" if unread else ""
        return (
            f"it was deleted and made again (id {was}, now {now}): the new one is read from its"
            f" start, {first}; of the old one everything up to {old} is published{lost}"
        )
