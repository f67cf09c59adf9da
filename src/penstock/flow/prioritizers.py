"""Prioritizers: in which order a queue hands out its FlowFiles.

Owns the protocol, the four standard ones, and the order that a list of them makes. Does not own
the queue. Invariant: a prioritizer is a pure function of the FlowFile, so that a swap file that was
sorted by it once stays sorted by it; what makes two of a kind different is in its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import add
from typing import Any, Final, Protocol, cast, runtime_checkable

from penstock.core.errors import InvalidRequest
from penstock.flow.flowfile import PRIORITY, FlowFile

_NOWHERE: Final = ("", "", "", -1)
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


class Key(Protocol):
    """Something that compares with its like."""

    def __lt__(self, other: Any, /) -> bool:
        """Say whether this one comes first."""
        ...


class Prioritizer(Protocol):
    """What comes first; a user's own needs these two.

    Attributes:
        name: Its name with its arguments; two of the same name give the same keys.
    """

    @property
    def name(self) -> str:
        """Return its name with its arguments."""
        ...

    def key(self, flowfile: FlowFile) -> Key:
        """Return what compares less for what comes first."""
        ...


@runtime_checkable
class BatchPrioritizer(Protocol):
    """A prioritizer that makes many keys at once, for speed."""

    def keys(self, flowfiles: Sequence[FlowFile]) -> Sequence[tuple[object, ...]]:
        """Return the keys of many, the same as one by one: tuples of the same length."""
        ...


class FirstInFirstOut:
    """The one that was put into a queue last comes last."""

    name = "FirstInFirstOutPrioritizer"

    def key(self, flowfile: FlowFile) -> Key:
        """Return when it was queued."""
        return (flowfile.queued_ms, flowfile.queue_index)

    def keys(self, flowfiles: Sequence[FlowFile]) -> Sequence[tuple[object, ...]]:
        """Return the keys of many."""
        return [(one.queued_ms, one.queue_index) for one in flowfiles]


class OldestFlowFileFirst:
    """The one whose oldest ancestor entered the system first."""

    name = "OldestFlowFileFirstPrioritizer"

    def key(self, flowfile: FlowFile) -> Key:
        """Return when its lineage began."""
        return (flowfile.lineage_start_ms, flowfile.lineage_index)

    def keys(self, flowfiles: Sequence[FlowFile]) -> Sequence[tuple[object, ...]]:
        """Return the keys of many."""
        return [(one.lineage_start_ms, one.lineage_index) for one in flowfiles]


class NewestFlowFileFirst:
    """The exact reverse of the oldest first."""

    name = "NewestFlowFileFirstPrioritizer"

    def key(self, flowfile: FlowFile) -> Key:
        """Return when its lineage began, negated."""
        return (-flowfile.lineage_start_ms, -flowfile.lineage_index)

    def keys(self, flowfiles: Sequence[FlowFile]) -> Sequence[tuple[object, ...]]:
        """Return the keys of many."""
        return [(-one.lineage_start_ms, -one.lineage_index) for one in flowfiles]


class PriorityAttribute:
    """By the attribute `priority`: whole numbers, smaller first, then other text, then none."""

    name = "PriorityAttributePrioritizer"

    def key(self, flowfile: FlowFile) -> Key:
        """Return what the attribute says."""
        return _priority(flowfile.attributes.get(PRIORITY))

    def keys(self, flowfiles: Sequence[FlowFile]) -> Sequence[tuple[object, ...]]:
        """Return the keys of many."""
        return [_priority(one.attributes.get(PRIORITY)) for one in flowfiles]


# Few texts come again and again, and equal keys that are one object compare at once.
@lru_cache(maxsize=4_096)
def _priority(text: str | None) -> tuple[int, int, str]:
    if text is None:
        return (2, 0, "")
    # NiFi trims what Java does: everything up to and with the space.
    trimmed = text.strip("".join(map(chr, range(33))))
    if _INTEGER.fullmatch(trimmed):
        number = int(trimmed)
        if _INT64_MIN <= number <= _INT64_MAX:
            return (0, number, text)
    return (1, 0, text)


STANDARD: Final[dict[str, Callable[[], Prioritizer]]] = {
    kind.name: kind
    for kind in (FirstInFirstOut, OldestFlowFileFirst, NewestFlowFileFirst, PriorityAttribute)
}


def prioritizer_named(name: str) -> Prioritizer:
    """Return a standard prioritizer by NiFi's name, with or without its package.

    Raises:
        InvalidRequest: There is none of this name.
    """
    short = name.rpartition(".")[2]
    if short not in STANDARD:
        raise InvalidRequest(
            f"there is no prioritizer {name!r}; use one of {', '.join(STANDARD)}, or a class of "
            "your own by its import path, package.module:Class"
        )
    return STANDARD[short]()


class SortOrder:
    """The order of a list of prioritizers; then by place of the content, so that reads are in line.

    Args:
        prioritizers: The first that tells two FlowFiles apart decides.

    Attributes:
        text: What the order is, for swap files: files of the same text are sorted alike.
    """

    def __init__(self, prioritizers: Sequence[Prioritizer] = ()) -> None:
        self.prioritizers = tuple(prioritizers)
        self.text = ", ".join([*(one.name for one in self.prioritizers), "content"])

    def keys(self, flowfiles: Sequence[FlowFile]) -> list[Key]:
        """Return the keys of FlowFiles; no two are equal, as no two ids are."""
        # Flat: comparing claims costs several times what their fields do. None comes first.
        places = [
            (*_NOWHERE, one.content_offset, one.id)
            if (claim := one.claim) is None
            else (
                (resource := claim.resource).id,
                resource.container,
                resource.section,
                claim.offset,
                one.content_offset,
                one.id,
            )
            for one in flowfiles
        ]
        keys: list[tuple[object, ...]] = list(places)
        for one in reversed(self.prioritizers):
            if isinstance(one, BatchPrioritizer):
                keys = list(map(add, one.keys(flowfiles), keys))
            else:
                keys = list(map(add, [(one.key(flowfile),) for flowfile in flowfiles], keys))
        return cast("list[Key]", keys)


def penalty_keys(flowfiles: Sequence[FlowFile]) -> list[Key]:
    """Return the keys by which penalized FlowFiles stand: the end of their penalty."""
    return [(one.penalty_until_ms, one.id) for one in flowfiles]
