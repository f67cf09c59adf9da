"""State of a supervisor's stream at the last poll, and which messages its source must keep.

On the overlord's mailbox; the source is called on a lane, one poll at a time. The last seen state
may be older than the offsets that a task has read, so messages count as missing only if
`confirmed_missing` reports them. A changed id needs no confirmation: another stream has the name,
because ids are never reused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.mailbox.background_calls import CallDispatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from penstock.core.errors import PenstockError
    from penstock.indexing.read_plan import AvailableRange, SeenTopic
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.source import RecordSupplier

_PARTITIONS_SHOWN: Final = 20


class StreamWatch:
    """The stream of one supervisor.

    Args:
        source: Reads the stream.
        hold_name: The name under which the source keeps messages.
        calls: Runs calls on lanes.
        lane: The lane of this stream.
    """

    def __init__(
        self, source: RecordSupplier, hold_name: str, calls: CallDispatcher, lane: str
    ) -> None:
        self._source = source
        self._hold_name = hold_name
        self._calls = calls
        self._lane = lane
        self._is_polling = False
        self._polls = 0
        self._polls_begun = 0
        self._polls_at_loss = 0
        self._seen_by = 0
        self._doubts: dict[Hashable, int] = {}
        self._held: dict[int, int] = {}
        self._seen: SeenTopic | None = None
        self._before: SeenTopic | None = None
        self._vanished: Mapping[int, AvailableRange] = {}

    @property
    def available(self) -> Mapping[int, AvailableRange] | None:
        """The readable offsets of each stream partition; None before the first poll."""
        return None if self._seen is None else self._seen.partitions

    @property
    def skipped(self) -> Mapping[str, str]:
        """The files of a folder that are not read: the reason of each, by path."""
        return {} if self._seen is None else self._seen.skipped

    @property
    def id(self) -> str:
        """The id of the stream; empty if unknown."""
        return "" if self._seen is None else self._seen.id

    @property
    def is_newer_than_losses(self) -> bool:
        """Whether a poll started after the last loss, so it covers all that a lost task read."""
        # A poll that was running at the loss may have started before the task's last read.
        return self._seen is not None and self._seen_by > self._polls_at_loss

    @property
    def is_doubtful(self) -> bool:
        """Whether another poll is needed to decide if messages are missing."""
        return bool(self._doubts)

    def note_loss(self) -> None:
        """Record the loss of a task, which may have read more than the last poll saw."""
        self._polls_at_loss = self._polls_begun

    def is_another(self, topic_id: str) -> bool:
        """Return whether the name now belongs to a stream with a different id."""
        return self._seen is not None and self._seen.is_another(topic_id)

    def unread(self, committed: Offsets) -> int:
        """Return the number of known messages after `committed` in the previous stream.

        There may have been more that no poll saw.
        """
        before = {} if self._before is None else self._before.partitions
        return sum(max(0, a.latest - committed.get(p, a.latest)) for p, a in before.items())

    @property
    def vanished_partitions(self) -> Mapping[int, AvailableRange]:
        """The stream partitions that the last poll no longer found, in their last state."""
        return self._vanished

    def poll(self, seen: Callable[[], None], failed: Callable[[PenstockError], None]) -> None:
        """Poll the stream, unless a poll is running; then call one of the callbacks."""
        if self._is_polling:
            return
        self._is_polling = True
        self._polls_begun += 1
        number = self._polls_begun

        def done(found: SeenTopic) -> None:
            self._is_polling = False
            self._vanished = {}
            if self._seen is not None and found.is_another(self._seen.id):
                # Results and holds of the previous stream are void.
                self._before, self._held, self._doubts = self._seen, {}, {}
            elif self._seen is not None:
                before, now = self._seen.partitions, found.partitions
                self._vanished = {p: a for p, a in before.items() if p not in now}
            self._seen, self._seen_by = found, number
            self._polls += 1
            seen()

        def not_done(error: PenstockError) -> None:
            self._is_polling = False
            failed(error)

        self._calls.call(self._lane, self._source.available, done, not_done)

    def spans(
        self,
        ranges: Mapping[int, tuple[int, int]],
        done: Callable[[dict[int, int | None]], None],
        failed: Callable[[PenstockError], None],
    ) -> None:
        """Determine the time between first and last records; see `RecordSupplier`.

        Polls continue meanwhile.
        """
        source = self._source
        self._calls.call(f"{self._lane}-times", lambda: source.spans_ms(ranges), done, failed)

    def confirmed_missing(self, lacking: Iterable[Hashable]) -> set[Hashable]:
        """Return the members of `lacking` that three polls have reported as missing.

        One poll does not suffice: the poll that first missed them, and one that was running then,
        may have started before messages arrived that a task has read since.
        """
        self._doubts = {one: self._doubts.get(one, self._polls) for one in lacking}
        return {one for one, since in self._doubts.items() if self._polls >= since + 2}

    def check(self, offsets: Offsets) -> None:
        """Check that messages can be read from these offsets onwards.

        Raises:
            InvalidRequest: The stream does not hold them.
        """
        available = self.available
        for p, offset in offsets.items() if available is not None else ():
            found = (available or {}).get(p)
            if found is None:
                known = sorted(available or {})
                shown = ", ".join(map(str, known[:_PARTITIONS_SHOWN]))
                rest = f", … ({len(known):,} in total)" if len(known) > _PARTITIONS_SHOWN else ""
                raise InvalidRequest(
                    f"topic {self._source.stream} has no stream partition {p}: use one of"
                    f" {shown}{rest}"
                )
            if not found.earliest <= offset <= found.latest:
                raise InvalidRequest(
                    f"topic {self._source.stream}: partition {p} holds offsets {found.earliest} to"
                    f" {found.latest}, so reading cannot continue at {offset}: use an offset in"
                    " this range"
                )

    def hold(self, committed: Offsets, failed: Callable[[PenstockError], None]) -> None:
        """Have the source keep the messages that are not committed."""
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
        """Let the source delete messages again."""
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
