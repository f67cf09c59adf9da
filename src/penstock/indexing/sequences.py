"""The sequences of a streaming task: which offsets are published together, and in which order.

A pure state machine: immutable values, no clock, no I/O. A sequence is a range of offsets [start,
end) of all stream partitions of a task; its rows are published in one transaction. Only the last
one may be open (its end is not agreed yet). Invariants, checked whenever a value is created:

- each sequence starts at the end of the previous one;
- every sequence but the last is closed; when the task finishes, the last one is closed too;
- ends are never before starts, and all name the same stream partitions.

| state | previous event | next state |
|---|---|---|
| open | the task started, or the previous sequence was closed | closed |
| closed | `set_end_offsets`, or `cut` | publishing, once everything before its end is persisted |
| publishing | `mark_publishing` | published, which removes it |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.core.errors import CorruptData, InvalidRequest
from penstock.core.printable import quoted
from penstock.core.whole_numbers import int64_of, is_int64

Offsets = Mapping[int, int]
"""Stream partition -> offset of the next message."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """Offsets [start, end) that are published together; `end` is None while it is open."""

    number: int
    name: str
    start: Offsets
    end: Offsets | None = None
    publishing: bool = False

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
            if item.end is None:
                _require(not item.publishing, f"{item.name} is open")
                continue
            _require(item.start.keys() == item.end.keys(), f"{item.name}: other partitions")
            is_forward = all(item.end[p] >= offset for p, offset in item.start.items())
            _require(is_forward, f"{item.name} ends before it starts")
        if self.final is None:
            is_open = bool(self.items) and self.items[-1].end is None
            _require(is_open, "a task that goes on has an open sequence")
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
            Sequence(number, f"{base_name}_{number}", dict(begin), stop)
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

    def set_end_offsets(
        self, end: Offsets, *, finish: bool, current: Offsets, paused: bool
    ) -> TaskSequences:
        """Close the open sequence at `end`; open the next one there, or finish the task.

        Setting the same end again changes nothing, so a caller whose answer was lost may repeat the
        call.

        Args:
            end: The agreed end of every stream partition.
            finish: Whether the task ends there.
            current: The end of what the task has read, or has started to read.
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
            return self
        if not finish and last is not None and last.end is None and dict(end) == dict(last.start):
            return self
        if last is None or last.end is not None:
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
        closed = (*self.items[:-1], replace(last, end=dict(end)))
        if finish:
            return replace(self, items=closed, final=dict(end))
        number = last.number + 1
        opened = Sequence(number, f"{self.base_name}_{number}", dict(end))
        return replace(self, items=(*closed, opened))

    def cut(self, persisted: Offsets) -> TaskSequences:
        """Return the state of a task that ends at its current offsets: later messages are lost.

        Agreed ends after these offsets are withdrawn.
        """
        items: list[Sequence] = []
        for item in self.items:
            if item.is_read(persisted):
                items.append(item)
                continue
            if dict(item.start) != dict(persisted):
                items.append(replace(item, end=dict(persisted)))
            break
        return replace(self, items=tuple(items), final=dict(persisted))

    def to_publish(self, persisted: Offsets) -> Sequence | None:
        """Return the oldest sequence if all of it is persisted and it is not publishing yet.

        Only the oldest, because the transaction of a later one would have to wait for it.
        """
        first = self.items[0] if self.items else None
        if first is None or first.publishing or not first.is_read(persisted):
            return None
        return first

    def mark_publishing(self, name: str) -> TaskSequences:
        """Return the state in which the oldest sequence is being published."""
        assert self.items[0].name == name, f"{name} is not the oldest sequence"
        return replace(self, items=(replace(self.items[0], publishing=True), *self.items[1:]))

    def mark_published(self, name: str) -> TaskSequences:
        """Return the state without the oldest sequence, whose rows are committed."""
        assert self.items[0].name == name, f"{name} is not the oldest sequence"
        return replace(self, items=self.items[1:])

    def to_json(self) -> dict[str, object]:
        """Return the form stored on disk, without `publishing`: a restart publishes again."""
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


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _from_json(value: object) -> TaskSequences:
    if not isinstance(value, dict):
        raise TypeError("not an object")
    items = tuple(
        Sequence(
            number=int(item["number"]),
            name=str(item["name"]),
            start=offsets_from_json(item["start"]),
            end=None if item["end"] is None else offsets_from_json(item["end"]),
        )
        for item in value["sequences"]
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
