"""A supervisor's stream: what it holds, as last seen, and what its source must keep of it.

On the overlord's mailbox; the source is called on a lane, one look at a time. What was seen may be
older than what a task has read meanwhile, so a lack of messages is believed only when it is `sure`.
That another stream has the name by now is sure at once: ids never come again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest
from penstock.indexing.errand import Calls

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from penstock.core.errors import PenstockError
    from penstock.indexing.batches import Available, SeenTopic
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.source import RecordSupplier


class StreamWatch:
    """The stream of one supervisor.

    Args:
        source: What it is read from.
        hold_name: The name under which messages are held back.
        calls: Runs calls on lanes.
        lane: The lane of this stream.
    """

    def __init__(self, source: RecordSupplier, hold_name: str, calls: Calls, lane: str) -> None:
        self._source = source
        self._hold_name = hold_name
        self._calls = calls
        self._lane = lane
        self._looking = False
        self._looks = 0
        self._looks_begun = 0
        self._looks_at_loss = 0
        self._seen_by = 0
        self._doubts: dict[Hashable, int] = {}
        self._held: dict[int, int] = {}
        self._seen: SeenTopic | None = None
        self._before: SeenTopic | None = None
        self._vanished: Mapping[int, Available] = {}

    @property
    def available(self) -> Mapping[int, Available] | None:
        """What can be read of each stream partition, None before the first look."""
        return None if self._seen is None else self._seen.partitions

    @property
    def id(self) -> str:
        """Which stream has the name, empty if that is not known."""
        return "" if self._seen is None else self._seen.id

    @property
    def is_newer_than_losses(self) -> bool:
        """Whether all that a lost task may have read was seen."""
        # A look that was under way at the loss may have begun before the task's last read.
        return self._seen is not None and self._seen_by > self._looks_at_loss

    @property
    def is_doubtful(self) -> bool:
        """Whether another look must say if messages are missing."""
        return bool(self._doubts)

    def note_loss(self) -> None:
        """A task was lost, that may have read more than was seen."""
        self._looks_at_loss = self._looks_begun

    def is_another(self, topic_id: str) -> bool:
        """Whether another stream has the name by now than the one with that id."""
        return self._seen is not None and self._seen.is_another(topic_id)

    def unread(self, committed: Offsets) -> int:
        """Return how many messages behind `committed` the stream before this one was seen to have.

        There may have been more, and none are known of if no look saw it.
        """
        before = {} if self._before is None else self._before.partitions
        return sum(max(0, a.latest - committed.get(p, a.latest)) for p, a in before.items())

    @property
    def vanished(self) -> Mapping[int, Available]:
        """The stream partitions that the last look did not find any more, as they were before."""
        return self._vanished

    def look(self, seen: Callable[[], None], failed: Callable[[PenstockError], None]) -> None:
        """Look what there is, unless a look is under way; then call one of the others."""
        if self._looking:
            return
        self._looking = True
        self._looks_begun += 1
        number = self._looks_begun

        def done(found: SeenTopic) -> None:
            self._looking = False
            self._vanished = {}
            if self._seen is not None and found.is_another(self._seen.id):
                # What was found out about the one before, and asked for it, is void.
                self._before, self._held, self._doubts = self._seen, {}, {}
            elif self._seen is not None:
                before, now = self._seen.partitions, found.partitions
                self._vanished = {p: a for p, a in before.items() if p not in now}
            self._seen, self._seen_by = found, number
            self._looks += 1
            seen()

        def not_done(error: PenstockError) -> None:
            self._looking = False
            failed(error)

        self._calls.call(self._lane, self._source.available, done, not_done)

    def spans(
        self,
        ranges: Mapping[int, tuple[int, int]],
        done: Callable[[dict[int, int | None]], None],
        failed: Callable[[PenstockError], None],
    ) -> None:
        """Find out how much time lies between first and last records; see `RecordSupplier`.

        The looks go on meanwhile.
        """
        source = self._source
        self._calls.call(f"{self._lane}-times", lambda: source.spans_ms(ranges), done, failed)

    def sure(self, lacking: Iterable[Hashable]) -> set[Hashable]:
        """Return what of `lacking` is surely not there: it lacks since the look before the last.

        The look that found it first, and one that was under way then, may have begun before the
        messages came that a task has read since.
        """
        self._doubts = {one: self._doubts.get(one, self._looks) for one in lacking}
        return {one for one, since in self._doubts.items() if self._looks >= since + 2}

    def check(self, offsets: Offsets) -> None:
        """Say whether messages can be read from these offsets on.

        Raises:
            InvalidRequest: The stream does not hold them.
        """
        available = self.available
        for p, offset in offsets.items() if available is not None else ():
            found = (available or {}).get(p)
            if found is None:
                raise InvalidRequest(f"topic {self._source.stream} has no stream partition {p}")
            if not found.earliest <= offset <= found.latest:
                raise InvalidRequest(
                    f"topic {self._source.stream}: partition {p} holds {found.earliest} to"
                    f" {found.latest}, it cannot go on at {offset}"
                )

    def hold(self, committed: Offsets, failed: Callable[[PenstockError], None]) -> None:
        """Have the broker keep what is not committed."""
        there = self.available or {}
        held = {p: o for p, o in committed.items() if p in there and o <= there[p].latest}
        if not held or held == self._held:
            return
        self._held = held

        def not_done(error: PenstockError) -> None:
            self._held = {}
            failed(error)

        source, name = self._source, self._hold_name
        self._calls.call(self._lane, lambda: source.hold(name, held), lambda _none: None, not_done)

    def let_go(
        self,
        committed: Offsets,
        done: Callable[[], None],
        failed: Callable[[PenstockError], None],
    ) -> None:
        """Have the broker keep nothing any more."""
        source, name = self._source, self._hold_name
        partitions = sorted((self.available or {}).keys() | committed.keys())
        self._calls.call(
            self._lane,
            lambda: source.let_go(name, partitions),
            lambda _none: done(),
            failed,
        )


def cursor_name(supervisor_id: str) -> str:
    """Return the name under which messages are kept until they are published."""
    plain = all(c.isascii() and (c.isalnum() or c in "._-") for c in supervisor_id)
    if plain and len(supervisor_id) <= 40:
        return f"supervisor.{supervisor_id}"
    return f"supervisor.{supervisor_id.encode().hex()[:50]}"
