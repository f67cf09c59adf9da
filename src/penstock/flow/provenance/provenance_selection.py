"""Selection of FlowFiles by their events, for replays of many of them.

Owns which events a filter chooses, in which step of a selection a FlowFile counts, and what became
of it. Pure: `provenance_reader` reads the commits.

Invariants:

- A selection is a range of events: those with numbers from that of its first step up to its last
  commit. Its steps divide the range. A FlowFile counts in the step that has the last of its chosen
  events, so it counts once. One with more than `HISTORY_MAX` commits may count in several steps.
- Commits do not change, so a step that is repeated chooses the same FlowFiles. Only what became of
  them may have changed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.errors import InvalidRequest
from penstock.flow.flowfile import FlowFile
from penstock.flow.provenance.provenance_events import (
    EVENT_BITS,
    EventKind,
    ProvenanceEvent,
    events_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.flow.repository.commit_records import CommitRecord

TIME_MAX_MS: Final = 1 << 53
STEP_MAX: Final = 2_000
"""Most FlowFiles of one step. A queue that is not full may get this many beyond its limit."""
STEP_BYTES_MAX: Final = 64 << 20
"""Bytes of content after which a step ends: a replay reads the content."""
STEP_EVENTS_MAX: Final = 20_000
"""Events after which a step ends: they are derived in about a second."""
STEP_COMMITS_MAX: Final = 50_000
"""Commits of its FlowFiles that a step reads: its process must answer within a minute."""
STEP_COMMIT_BYTES_MAX: Final = 128 << 20
"""Bytes of these commits: 20 MB with 500 FlowFiles in each commit take about a second."""
HISTORY_MAX: Final = 1_000
"""Commits of one FlowFile that are read, the newest."""
# Without earlier versions of a FlowFile, one of these may be another of them.
_UNSURE: Final = frozenset({EventKind.ROUTE, EventKind.ATTRIBUTES_MODIFIED})


class FlowFileVersion(msgspec.Struct, frozen=True):
    """FlowFile as a commit put it into a queue.

    Attributes:
        flowfile: The FlowFile.
        queue: Id of the connection.
        event: Id of the event.
    """

    flowfile: FlowFile
    queue: str
    event: str


class EventFilter(msgspec.Struct, frozen=True):
    """Which events choose their FlowFiles: all conditions must be true.

    Attributes:
        component: Id of the processor; empty: of any.
        event: Kind of the event; empty: any.
        from_ms: Least time, in epoch milliseconds.
        to_ms: Time before which the event was, in epoch milliseconds.
        attribute: Name of an attribute; empty: no condition.
        value: Its value.

    Raises:
        InvalidRequest: The kind is unknown, or the range of time is empty.
    """

    component: str = ""
    event: str = ""
    from_ms: int = 0
    to_ms: int = TIME_MAX_MS
    attribute: str = ""
    value: str = ""

    def __post_init__(self) -> None:
        kinds = [kind.value for kind in EventKind]
        if self.event and self.event not in kinds:
            raise InvalidRequest(
                f"unknown kind of event {self.event!r}: use one of {', '.join(kinds)}",
                place="event",
            )
        if self.from_ms >= self.to_ms:
            raise InvalidRequest("it must be later than from", place="to")

    @property
    def needs_versions(self) -> bool:
        """Return whether `chooses` depends on earlier versions of a FlowFile."""
        return bool(self.attribute) or self.event in _UNSURE

    def may_choose(self, event: ProvenanceEvent) -> bool:
        """Return whether an event may be chosen that was derived without earlier versions."""
        is_kind = not self.event or event.event == self.event
        is_unsure = event.event in _UNSURE and self.event in _UNSURE
        return (
            event.flowfile is not None
            and (is_kind or is_unsure)
            and (not self.component or event.component == self.component)
            and self.from_ms <= event.time < self.to_ms
        )

    def chooses(self, event: ProvenanceEvent, attributes: Mapping[str, str]) -> bool:
        """Return whether an event is chosen.

        Args:
            event: The event, derived with the earlier version of its FlowFile.
            attributes: Those that its FlowFile has after it, or had before it left the flow.
        """
        return (
            (not self.event or event.event == self.event)
            and self.may_choose(event)
            and (not self.attribute or attributes.get(self.attribute) == self.value)
        )


class ChosenFlowFile(msgspec.Struct, frozen=True):
    """FlowFile of a selection.

    Attributes:
        flowfile: Its id.
        version: The FlowFile as it was last in a queue; None: no commit that is kept shows it.
        is_queued: Whether it is still in a queue, as far as the record shows.
        replayed_as: Id of a FlowFile that is a replay of it; None: there is none.
        is_unclear: Whether not all of its commits were read, and the newest ones do not show
            whether the filter chooses it.
    """

    flowfile: int
    version: FlowFileVersion | None
    is_queued: bool
    replayed_as: int | None
    is_unclear: bool = False


class SelectionStep(msgspec.Struct, frozen=True):
    """FlowFiles that one step of a selection chooses.

    Attributes:
        chosen: They, in the order of their last chosen events.
        following: Number of the event at which the next step begins; None: this was the last one.
        until: Number of the last commit of the selection.
        time_ms: Time of the last event that was read; 0: there was none.
    """

    chosen: list[ChosenFlowFile]
    following: int | None
    until: int
    time_ms: int


class FlowFileHistories:
    """State and chosen events of some FlowFiles, from their commits.

    Args:
        wanted: The filter.
        flowfiles: Their ids.
        until: Number of the last commit of which events are chosen; later ones only show what
            became of the FlowFiles.
    """

    def __init__(self, wanted: EventFilter, flowfiles: Collection[int], until: int) -> None:
        self._wanted = wanted
        self._ids = flowfiles
        self._until = until
        self._known: dict[int, FlowFile] = {}
        self._versions: dict[int, FlowFileVersion] = {}
        self._queued: set[int] = set()
        self._replays: dict[int, int] = {}
        self._last: dict[int, int] = {}  # number of the last chosen event
        self._unclear: set[int] = set()

    def cut(self, flowfile: int, number: int) -> None:
        """Name an event that may choose a FlowFile of which not all commits are read."""
        self._last[flowfile] = number
        if self._wanted.needs_versions:
            self._unclear.add(flowfile)

    def add(self, commit: CommitRecord) -> None:
        """Take the next commit that concerns one of them; the caller adds them in order."""
        ids = self._ids
        events = events_of(commit, self._known, ids)
        puts = {
            one.id: (one, queue)
            for queue, put in commit.puts.items()
            for one in put
            if one.id in ids
        }
        for event in events:
            number = event.flowfile
            if number is None:
                continue
            found = puts.get(number)
            if found is not None:
                self._versions[number] = FlowFileVersion(*found, event.id)
            known = self._known.get(number) if found is None else found[0]
            attributes = {} if known is None else known.attributes
            if commit.number <= self._until and self._wanted.chooses(event, attributes):
                place = int(event.id.partition("-")[2])
                self._last[number] = (commit.number << EVENT_BITS) + place
                self._unclear.discard(number)
        for number, (flowfile, queue) in puts.items():
            self._known[number] = flowfile
            self._versions.setdefault(number, FlowFileVersion(flowfile, queue, ""))
            self._queued.add(number)
        self._queued.difference_update(commit.removes)
        for note in commit.notes:
            if note.replay:
                self._replays.update(one for one in note.links if one[0] in ids)

    def chosen(self, first: int, end: int) -> list[tuple[int, ChosenFlowFile]]:
        """Return the FlowFiles whose last chosen event is in a range, with its number, in order."""
        found = sorted((last, one) for one, last in self._last.items() if first <= last < end)
        return [
            (
                last,
                ChosenFlowFile(
                    one,
                    self._versions.get(one),
                    one in self._queued,
                    self._replays.get(one),
                    one in self._unclear,
                ),
            )
            for last, one in found
        ]
