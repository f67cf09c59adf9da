"""The sequences of a streaming task: which offsets are published together, and in which order.

Pure: immutable values, no clock, no I/O. A sequence is a range of offsets [start, end) of all
stream partitions of a task; its rows are published in one transaction. Only the last one may be
open (its end is not agreed yet). `SEQUENCE_MACHINE` has the states of one sequence; `TaskSequences`
holds those of a task that are not published. Invariants, checked whenever a value is created:

- each sequence starts at the end of the previous one;
- every sequence but the last is closed; when the task finishes, the last one is closed too;
- ends are never before starts, and all name the same stream partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.core.errors import CorruptData, InvalidRequest
from penstock.core.printable import quoted
from penstock.core.state_machine import IGNORED, IMPOSSIBLE, Refusal, Row, StateMachine, Symbol, go
from penstock.core.whole_numbers import int64_of, is_int64

Offsets = Mapping[int, int]
"""Stream partition -> offset of the next message."""


class SequenceState(Symbol):
    """State of a sequence. PUBLISHING and READ are not stored: a restart determines them again."""

    OPEN = "open"
    """Its end is not agreed."""
    CLOSED = "closed"
    """Its end is agreed, and not everything before it is persisted."""
    READ = "read"
    """It is closed and persisted; it waits for dead letters, announcement, and earlier ones."""
    PUBLISHING = "publishing"
    PUBLISHED = "published"
    """Its rows are committed in the metadata store: the task no longer has it."""
    WITHDRAWN = "withdrawn"
    """The stream ended before it: the task no longer has it."""


class SequenceEvent(Symbol):
    """Event of a sequence."""

    STARTED = "the task started"
    PERSISTED = "messages of it are persisted"
    FULL = "it has as many rows as it should"
    END_SET = "its end is set"
    STREAM_LOST = "the stream is lost after the persisted offsets"
    STREAM_LOST_BEFORE = "the stream is lost before it"
    REACHED = "everything before its end is persisted"
    MERGED = "small files of it are merged"
    READY = "it is the oldest, announced, and its dead letters are sent"
    PUBLISHED = "its rows are committed"


class SequenceEffect(Symbol):
    """Effect on a sequence's task.

    The owner saves the next values before it uses them. Old files are those that the event
    replaced, new ones those that it made.
    """

    SAVE_SEQUENCES = "write sequences.json"
    SAVE_COMMIT = "write commit.json"
    ANNOUNCE = "announce its files"
    REQUEST_CHECKPOINT = "request its end from the supervisor"
    PUBLISH = "publish it"
    DELETE_OLD_FILES_LATER = "delete old files once queries have ended"
    DELETE_NEW_FILES = "delete new files"
    RELEASE_LOCKS = "release its locks if the spec requests that"


_S = SequenceState
_F = SequenceEffect
_ANNOUNCE: Final = (_F.SAVE_COMMIT, _F.ANNOUNCE)
_REPLACE: Final = (_F.SAVE_COMMIT, _F.DELETE_OLD_FILES_LATER, _F.ANNOUNCE)

SEQUENCE_MACHINE: Final = StateMachine[SequenceState, SequenceEvent, SequenceEffect](
    SequenceState,
    {
        SequenceEvent.STARTED: Row(
            # An announcement before a crash may be lost.
            {state: go(state, _F.ANNOUNCE) for state in (_S.OPEN, _S.CLOSED, _S.READ)},
            otherwise=IMPOSSIBLE,
        ),
        SequenceEvent.PERSISTED: Row(
            {state: go(state, *_ANNOUNCE) for state in (_S.OPEN, _S.CLOSED)}, otherwise=IMPOSSIBLE
        ),
        SequenceEvent.FULL: Row(
            {_S.OPEN: go(_S.OPEN, _F.REQUEST_CHECKPOINT)},
            IGNORED,
        ),
        SequenceEvent.END_SET: Row(
            {_S.OPEN: go(_S.CLOSED, _F.SAVE_SEQUENCES)},
            Refusal("the end of the task is agreed already"),
        ),
        SequenceEvent.STREAM_LOST: Row(
            {
                _S.OPEN: go(_S.CLOSED, _F.SAVE_SEQUENCES),
                _S.CLOSED: go(_S.CLOSED, _F.SAVE_SEQUENCES),
            },
            otherwise=IMPOSSIBLE,
        ),
        SequenceEvent.STREAM_LOST_BEFORE: Row(
            {state: go(_S.WITHDRAWN, _F.SAVE_SEQUENCES) for state in (_S.OPEN, _S.CLOSED)},
            otherwise=IMPOSSIBLE,
        ),
        SequenceEvent.REACHED: Row({_S.CLOSED: go(_S.READ)}, otherwise=IMPOSSIBLE),
        SequenceEvent.MERGED: Row(
            {
                **{state: go(state, *_REPLACE) for state in (_S.OPEN, _S.CLOSED, _S.READ)},
                # The publish uses the old files.
                **{
                    state: go(state, _F.DELETE_NEW_FILES) for state in (_S.PUBLISHING, _S.PUBLISHED)
                },
            },
            otherwise=IMPOSSIBLE,
        ),
        SequenceEvent.READY: Row({_S.READ: go(_S.PUBLISHING, _F.PUBLISH)}, otherwise=IMPOSSIBLE),
        SequenceEvent.PUBLISHED: Row(
            {
                _S.PUBLISHING: go(
                    _S.PUBLISHED,
                    # In this order: the next start drops persists of an unknown sequence, but would
                    # read a sequence without its persists again.
                    _F.SAVE_SEQUENCES,
                    _F.SAVE_COMMIT,
                    _F.DELETE_OLD_FILES_LATER,
                    _F.DELETE_NEW_FILES,
                    _F.RELEASE_LOCKS,
                )
            },
            otherwise=IMPOSSIBLE,
        ),
    },
    initial=(_S.OPEN, _S.CLOSED),
    final=(_S.PUBLISHED, _S.WITHDRAWN),
)


@dataclass(frozen=True, slots=True)
class Sequence:
    """Offsets [start, end) that are published together; `end` is None while it is open."""

    number: int
    name: str
    start: Offsets
    end: Offsets | None = None
    state: SequenceState = SequenceState.OPEN

    def after(self, event: SequenceEvent) -> tuple[Sequence, tuple[SequenceEffect, ...]]:
        """Return the sequence after an event that cannot be refused, and the effects."""
        outcome = SEQUENCE_MACHINE.transition(self.state, event)
        assert not isinstance(outcome, Refusal), f"{self.name}: {event} is a request"
        return replace(self, state=outcome.state), outcome.effects

    def is_read(self, current: Offsets) -> bool:
        """Return whether everything before its end is read."""
        return self.end is not None and all(current[p] >= end for p, end in self.end.items())

    def left(self, partition: int, current: int, available: int) -> int:
        """Return how many available messages of the partition belong here and are unread."""
        limit = available if self.end is None else min(available, self.end[partition])
        return max(0, limit - current)


@dataclass(frozen=True, slots=True)
class TaskSequences:
    """All sequences of a task that are not published yet, oldest first.

    `final` is the agreed end of the task, else None.

    Raises:
        ValueError: They contradict each other.
    """

    base_name: str
    items: tuple[Sequence, ...]
    final: Offsets | None = None

    def __post_init__(self) -> None:
        for before, after in zip(self.items, self.items[1:], strict=False):
            _require(before.end is not None, f"{before.name} is open but not the last")
            _require(dict(before.end or {}) == dict(after.start), f"{after.name} leaves a gap")
        for item in self.items:
            is_open = item.state is SequenceState.OPEN
            _require((item.end is None) == is_open, f"{item.name} is {item.state.value}")
            if item.end is None:
                continue
            _require(item.start.keys() == item.end.keys(), f"{item.name}: other partitions")
            is_forward = all(item.end[p] >= offset for p, offset in item.start.items())
            _require(is_forward, f"{item.name} ends before it starts")
        if self.final is None:
            is_open = bool(self.items) and self.items[-1].end is None
            _require(is_open, "a task that continues has an open sequence")
        elif self.items:
            ends_there = dict(self.items[-1].end or {}) == dict(self.final)
            _require(ends_there, "the last sequence ends elsewhere")

    @classmethod
    def begin(
        cls,
        base_name: str,
        start: Offsets,
        end: Offsets | None = None,
        checkpoints: Mapping[int, Offsets] | None = None,
    ) -> TaskSequences:
        """Return the initial sequences of a task.

        Args:
            base_name: Prefix of their names.
            start: Start of sequence 0.
            end: End of the last one, if known.
            checkpoints: Starts of sequences, by number, for a replica that joins others: all but
                the last are closed. Without them there is one sequence, 0.
        """
        final = None if end is None else dict(end)
        starts = sorted((checkpoints or {0: start}).items())
        ends = [*(dict(begin) for _, begin in starts[1:]), final]
        items = tuple(
            Sequence(number, f"{base_name}_{number}", dict(begin), stop, _first_state(stop))
            for (number, begin), stop in zip(starts, ends, strict=True)
        )
        return cls(base_name, items, final)

    @property
    def last(self) -> Sequence | None:
        """The newest sequence."""
        return self.items[-1] if self.items else None

    @property
    def done(self) -> bool:
        """Whether the end was agreed and everything before it is published."""
        return self.final is not None and not self.items

    def on(self, name: str, event: SequenceEvent) -> SequenceStep:
        """Return the outcome of an event of a sequence; a missing sequence was published."""
        if all(item.name != name for item in self.items):
            outcome = SEQUENCE_MACHINE.transition(SequenceState.PUBLISHED, event)
            assert not isinstance(outcome, Refusal), f"{name}: {event} is a request"
            return SequenceStep(self, outcome.effects)
        items: list[Sequence] = []
        effects: tuple[SequenceEffect, ...] = ()
        for item in self.items:
            after = item
            if item.name == name:
                after, effects = item.after(event)
            if after.state not in SEQUENCE_MACHINE.final:
                items.append(after)
        return SequenceStep(replace(self, items=tuple(items)), effects)

    def reached(self, persisted: Offsets) -> TaskSequences:
        """Return the sequences when everything before these offsets is persisted."""
        items = tuple(
            item.after(SequenceEvent.REACHED)[0]
            if item.state is SequenceState.CLOSED and item.is_read(persisted)
            else item
            for item in self.items
        )
        return self if items == self.items else replace(self, items=items)

    def set_end_offsets(
        self, end: Offsets, *, finish: bool, current: Offsets, paused: bool
    ) -> SequenceStep:
        """Close the open sequence at `end`; open the next one there, or finish the task.

        Setting the same end again changes nothing, so a caller whose answer was lost may repeat the
        call.

        Args:
            end: The agreed end of every stream partition.
            finish: Whether the task ends there.
            current: The end of the offsets that the task has read, or has started to read.
            paused: Whether the task is paused, so that `current` does not change.

        Raises:
            InvalidRequest: It names other stream partitions, the end is agreed already, the task is
                not paused, or it has read past the end.
        """
        last = self.last
        known = last.start if last is not None else self.final or {}
        if end.keys() != known.keys():
            raise InvalidRequest(
                f"end offsets name the stream partitions {sorted(end)}, but the task reads"
                f" {sorted(known)}: specify one offset for each"
            )
        if finish and self.final is not None and dict(end) == dict(self.final):
            return SequenceStep(self)
        if not finish and last is not None and last.end is None and dict(end) == dict(last.start):
            return SequenceStep(self)
        outcome = SEQUENCE_MACHINE.transition(
            last.state if last is not None else SequenceState.PUBLISHED, SequenceEvent.END_SET
        )
        if isinstance(outcome, Refusal) or last is None:
            raise InvalidRequest(
                f"{self.base_name}: the end of the task is agreed already, at"
                f" {_text(self.final or {})}; it cannot be moved to {_text(end)}"
            )
        if not paused:
            raise InvalidRequest(f"{last.name}: pause the task before setting its end offsets")
        reached = {p: max(o, last.start[p]) for p, o in current.items()}
        behind = {p: o for p, o in end.items() if o < reached[p]}
        if behind:
            raise InvalidRequest(
                f"{last.name}: the end {_text(behind)} is before the offsets already read,"
                f" {_text({p: reached[p] for p in behind})}: agree on a later one"
            )
        closed = (*self.items[:-1], replace(last, end=dict(end), state=outcome.state))
        if finish:
            return SequenceStep(replace(self, items=closed, final=dict(end)), outcome.effects)
        number = last.number + 1
        opened = Sequence(number, f"{self.base_name}_{number}", dict(end))
        return SequenceStep(replace(self, items=(*closed, opened)), outcome.effects)

    def cut(self, persisted: Offsets) -> SequenceStep:
        """Return the state of a task that ends at its persisted offsets: later messages are lost.

        Agreed ends after these offsets are withdrawn.
        """
        items: list[Sequence] = []
        effects: tuple[SequenceEffect, ...] = ()
        is_ended = False
        for item in self.reached(persisted).items:
            if item.is_read(persisted):
                items.append(item)
                continue
            if is_ended or dict(item.start) == dict(persisted):
                _, effects = item.after(SequenceEvent.STREAM_LOST_BEFORE)
            else:
                after, effects = item.after(SequenceEvent.STREAM_LOST)
                items.append(replace(after, end=dict(persisted)))
            is_ended = True
        cut = replace(self, items=tuple(items), final=dict(persisted))
        return SequenceStep(cut.reached(persisted), effects)

    @property
    def to_publish(self) -> Sequence | None:
        """The oldest sequence if all of it is persisted and it is not publishing yet.

        Only the oldest, because the transaction of a later one would have to wait for it.
        """
        first = self.items[0] if self.items else None
        return first if first is not None and first.state is SequenceState.READ else None

    def to_json(self) -> dict[str, object]:
        """Return the form stored on disk, without states: a restart publishes again."""
        return {
            "baseName": self.base_name,
            "final": None if self.final is None else offsets_to_json(self.final),
            "sequences": [
                {
                    "number": item.number,
                    "name": item.name,
                    "start": offsets_to_json(item.start),
                    "end": None if item.end is None else offsets_to_json(item.end),
                }
                for item in self.items
            ],
        }

    @classmethod
    def from_json(cls, value: object, *, source: str) -> TaskSequences:
        """Parse the form stored on disk.

        Raises:
            CorruptData: It is not the output of `to_json`, or contradicts itself.
        """
        try:
            return _from_json(value)
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            InvalidRequest,
        ) as error:
            raise CorruptData(source, 0, f"not a list of sequences: {error!r}") from error


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """Result of an event: the next sequences, and the effects in order."""

    sequences: TaskSequences
    effects: tuple[SequenceEffect, ...] = ()


def _first_state(end: Offsets | None) -> SequenceState:
    return SequenceState.OPEN if end is None else SequenceState.CLOSED


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _from_json(value: object) -> TaskSequences:
    if not isinstance(value, dict):
        raise TypeError("not an object")
    ends = [
        None if item["end"] is None else offsets_from_json(item["end"])
        for item in value["sequences"]
    ]
    items = tuple(
        Sequence(
            number=int(item["number"]),
            name=str(item["name"]),
            start=offsets_from_json(item["start"]),
            end=end,
            state=_first_state(end),
        )
        for item, end in zip(value["sequences"], ends, strict=True)
    )
    final = None if value["final"] is None else offsets_from_json(value["final"])
    return TaskSequences(str(value["baseName"]), items, final)


def offsets_to_json(offsets: Offsets) -> dict[str, int]:
    """Return offsets with text keys, in order, as JSON requires."""
    return {str(partition): offsets[partition] for partition in sorted(offsets)}


def offsets_from_json(value: object) -> dict[int, int]:
    """Parse offsets written by `offsets_to_json`.

    Raises:
        InvalidRequest: It is not an object of stream partition numbers and offsets.
    """
    if not isinstance(value, dict):
        raise InvalidRequest(f'offsets must be an object such as {{"0": 120}}, not {value!r:.60}')
    found: dict[int, int] = {}
    for key, offset in value.items():
        partition = int64_of(str(key)) if isinstance(key, int | str) else None
        if partition is None or partition < 0 or not is_int64(offset) or offset < 0:
            raise InvalidRequest(
                'offsets must be stream partitions and offsets of 64 bits such as {"0": 120},'
                f" not {quoted(str(key))}: {offset!r:.60}"
            )
        if partition in found:
            raise InvalidRequest(f"stream partition {partition} has two offsets: keep one of them")
        found[partition] = offset
    return found


def range_from_json(start: object, end: object) -> tuple[dict[int, int], dict[int, int]]:
    """Parse the start and the end of a sequence. Raises as `offsets_from_json`.

    Raises:
        InvalidRequest: The two name different stream partitions.
    """
    begins, ends = offsets_from_json(start), offsets_from_json(end)
    if begins.keys() != ends.keys():
        raise InvalidRequest(
            f"the start names the stream partitions {sorted(begins)}, but the end {sorted(ends)}:"
            " name the same in both"
        )
    return begins, ends


def _text(offsets: Offsets) -> str:
    return ", ".join(f"{p}:{offsets[p]}" for p in sorted(offsets)) or "nothing"
