"""The committed offsets of a supervisor, and the topic that they belong to.

On the overlord's mailbox, backed by the metadata store: caches the offsets and moves them for a
supervisor. Publishes also move them, from other threads. Does not decide which tasks run.

Invariant: offsets are valid in one topic only, so the topic's id is committed with them. A topic
that is deleted and created again under its name has another id; then all offsets are replaced at
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import counted
from penstock.indexing.supervisor.task_groups import first_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.indexing.read_plan import AvailableRange
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.supervisor.stream_watch import StreamWatch
    from penstock.indexing.supervisor.task_groups import StartPlan
    from penstock.storage.metadata import MetadataStore

_READ_EVERY_S: Final = 30.0


class CommittedOffsets:
    """The committed offsets of one supervisor; its methods raise errors of the metadata store.

    Args:
        supervisor_id: The supervisor.
        metadata: The metadata store.
        topic: The topic as last seen.
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
        """Whether their topic was deleted and another one now has its name."""
        return self._topic.is_another(self.topic_id)

    @property
    def to_keep(self) -> Offsets:
        """Offsets of the current topic from which messages must still be read."""
        if self.is_left_behind:
            return {p: a.earliest for p, a in (self._topic.available or {}).items()}
        return self.offsets

    def refresh(self, now_s: float) -> None:
        """Read the offsets again if they may have changed; called about once a second.

        They are read after a write in this leader's term, and every 30 seconds in case another
        process changed them although it must not.
        """
        moved = self._metadata.last_move(self._supervisor_id) != self._seen
        if moved or now_s >= self._read_again_s:
            self.read()
            self._read_again_s = now_s + _READ_EVERY_S

    def read(self) -> None:
        """Read the offsets from the metadata store."""
        # Before the offsets, so that a write in between causes another read.
        seen = self._metadata.last_move(self._supervisor_id)
        found = self._metadata.committed(self._supervisor_id)
        self.offsets = {} if found is None else dict(found.offsets)
        self.topic_id = "" if found is None else found.topic_id
        self._seen = seen

    def begin(self, *, earliest: bool) -> None:
        """Commit first offsets of stream partitions without offsets, and the topic's id.

        Args:
            earliest: Whether a stream partition starts at its earliest offset; otherwise at its
                end.
        """
        available = self._topic.available or {}
        first = first_offsets(available, self.offsets or None, earliest=earliest)
        # Offsets from a release without ids are assumed to belong to the current topic.
        if first or (self._topic.id and not self.topic_id):
            self._metadata.begin_offsets(self._supervisor_id, first, self._topic.id)
            self.read()

    def begin_at(self, first: Offsets) -> None:
        """Commit these first offsets for stream partitions without offsets."""
        if first.keys() - self.offsets.keys():
            self._metadata.begin_offsets(self._supervisor_id, first, self._topic.id)
            self.read()

    def move(self, offsets: Offsets) -> None:
        """Set the offsets of some stream partitions."""
        self._metadata.move_offsets(self._supervisor_id, offsets)
        self.read()

    def skip(self, plan: StartPlan, available: Mapping[int, AvailableRange]) -> Offsets | None:
        """Skip the missing messages of a plan; return the new offsets, or None to wait.

        Messages before the missing ones must be published first, because they could not be
        published after the skip.
        """
        gone = plan.gone(available)
        if any(plan.start[p] != self.offsets.get(p) for p in gone):
            return None
        wanted = {p: available[p].earliest for p in gone}
        if plan.end is not None:
            if any(wanted[p] <= plan.start[p] for p in gone):
                return None  # The topic was created again; the following task detects it and fails.
            wanted = {p: min(offset, plan.end[p]) for p, offset in wanted.items()}
        self.move(wanted)
        return wanted

    def reset(self, offsets: Offsets, *, earliest: bool) -> None:
        """Set all offsets, in the current topic.

        Args:
            offsets: Offsets of some stream partitions.
            earliest: Whether those of the others are the earliest ones, or the ends.
        """
        wanted = None
        if self._topic.available is not None:
            # Explicit offsets, so that a concurrent publish cannot match.
            first = first_offsets(self._topic.available, None, earliest=earliest)
            wanted = {**first, **offsets}
        self._metadata.reset_offsets(self._supervisor_id, wanted, self._topic.id)
        self.read()

    def begin_successor(self) -> str:
        """Continue at the start of the topic that now has the name; return a description.

        From now on publishes of the old topic are refused.
        """
        was, now, old = self.topic_id, self._topic.id, self.offsets
        # Messages that arrived before the topic was seen are new, so it starts at the earliest.
        first = first_offsets(self._topic.available or {}, {}, earliest=True)
        self._metadata.begin_topic(self._supervisor_id, was, now, first)
        self.read()
        unread = self._topic.unread(old)
        lost = f"; lost with it unread: {counted(unread, 'message')}" if unread else ""
        return (
            f"it was deleted and created again (id {was}, now {now}): the new one is read from its"
            f" start, {first}; of the old one everything up to {old} is published{lost}"
        )
