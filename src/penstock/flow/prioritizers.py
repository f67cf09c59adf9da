"""Prioritizers: the order in which a queue returns its FlowFiles.

Owns the protocol, the four standard prioritizers, the combined order of a list of them
(`SortOrder`), and user-defined prioritizers, which are found by import path. `UserPrioritizer`
replaces an invalid key by one that sorts last and logs the first occurrence. Does not own the
queue or the list of modules that flows may import (`user_modules`).

Invariants: a prioritizer is a pure function of the FlowFile, so that a swap file that was
sorted by it stays sorted; every parameter of a prioritizer is part of its name. Keys always compare
with each other in the same way, even if a user-defined prioritizer raises or returns invalid keys.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import add
from typing import Any, Final, Protocol, cast, runtime_checkable

from penstock.core.errors import InvalidRequest, NotFound
from penstock.flow.flowfile import PRIORITY, FlowFile
from penstock.flow.user_modules import FlowModules

_NOWHERE: Final = ("", "", "", -1)
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


class PriorityKey(Protocol):
    """Value that can be compared with others of its kind."""

    def __lt__(self, other: Any, /) -> bool:
        """Return whether this one comes first."""
        ...


class Prioritizer(Protocol):
    """Prioritizer; a user's prioritizer needs these two members.

    Attributes:
        name: Its name with its arguments; two with the same name return the same keys.
    """

    @property
    def name(self) -> str:
        """Return its name with its arguments."""
        ...

    def key(self, flowfile: FlowFile) -> PriorityKey:
        """Return the key; the lowest key comes first."""
        ...


@runtime_checkable
class BatchPrioritizer(Protocol):
    """Prioritizer that computes many keys at once, for speed."""

    def keys(self, flowfiles: Sequence[FlowFile]) -> Sequence[tuple[object, ...]]:
        """Return the keys of many FlowFiles, as `key` would: tuples of equal length."""
        ...


class FirstInFirstOut:
    """FlowFiles in the order in which they entered the queue."""

    name = "FirstInFirstOutPrioritizer"

    def key(self, flowfile: FlowFile) -> PriorityKey:
        """Return the time of entry into the queue."""
        return (flowfile.queued_ms, flowfile.queue_index)

    def keys(self, flowfiles: Sequence[FlowFile]) -> Sequence[tuple[object, ...]]:
        """Return the keys of many FlowFiles."""
        return [(one.queued_ms, one.queue_index) for one in flowfiles]


class OldestFlowFileFirst:
    """The FlowFile whose oldest ancestor entered the system first."""

    name = "OldestFlowFileFirstPrioritizer"

    def key(self, flowfile: FlowFile) -> PriorityKey:
        """Return the start of its lineage."""
        return (flowfile.lineage_start_ms, flowfile.lineage_index)

    def keys(self, flowfiles: Sequence[FlowFile]) -> Sequence[tuple[object, ...]]:
        """Return the keys of many FlowFiles."""
        return [(one.lineage_start_ms, one.lineage_index) for one in flowfiles]


class NewestFlowFileFirst:
    """The exact reverse of `OldestFlowFileFirst`."""

    name = "NewestFlowFileFirstPrioritizer"

    def key(self, flowfile: FlowFile) -> PriorityKey:
        """Return the negated start of its lineage."""
        return (-flowfile.lineage_start_ms, -flowfile.lineage_index)

    def keys(self, flowfiles: Sequence[FlowFile]) -> Sequence[tuple[object, ...]]:
        """Return the keys of many FlowFiles."""
        return [(-one.lineage_start_ms, -one.lineage_index) for one in flowfiles]


class PriorityAttribute:
    """By the attribute `priority`: integers ascending, then other text, then none."""

    name = "PriorityAttributePrioritizer"

    def key(self, flowfile: FlowFile) -> PriorityKey:
        """Return the key for the attribute's value."""
        return _priority(flowfile.attributes.get(PRIORITY))

    def keys(self, flowfiles: Sequence[FlowFile]) -> Sequence[tuple[object, ...]]:
        """Return the keys of many FlowFiles."""
        return [_priority(one.attributes.get(PRIORITY)) for one in flowfiles]


# Few texts are used again and again, and equal keys that are one object compare fast.
@lru_cache(maxsize=4_096)
def _priority(text: str | None) -> tuple[int, int, str]:
    if text is None:
        return (2, 0, "")
    # NiFi trims the same characters as Java: all up to and including the space.
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
        InvalidRequest: No standard prioritizer has this name.
    """
    short = name.rpartition(".")[2]
    if short not in STANDARD:
        raise InvalidRequest(
            f"unknown prioritizer {name!r}; use one of {', '.join(STANDARD)}, or your own class "
            "by its import path, package.module:Class"
        )
    return STANDARD[short]()


class SortOrder:
    """Order of a list of prioritizers, then of the content, so that reads are sequential.

    Args:
        prioritizers: Each orders FlowFiles that are equal for the previous ones.

    Attributes:
        text: Description of the order in swap files: files with the same text have the same order.
    """

    def __init__(self, prioritizers: Sequence[Prioritizer] = ()) -> None:
        self.prioritizers = tuple(prioritizers)
        self.text = ", ".join([*(one.name for one in self.prioritizers), "content"])

    def keys(self, flowfiles: Sequence[FlowFile]) -> list[PriorityKey]:
        """Return the keys of FlowFiles; all keys are different, because ids are."""
        # Flat tuples: comparing claims costs several times as much as comparing their fields. None
        # comes first.
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
        return cast("list[PriorityKey]", keys)


def penalty_keys(flowfiles: Sequence[FlowFile]) -> list[PriorityKey]:
    """Return the keys of penalized FlowFiles: the end of their penalty."""
    return [(one.penalty_until_ms, one.id) for one in flowfiles]


_logger = logging.getLogger(__name__)

_WHAT: Final = "prioritizer"
_NUMBER, _TEXT, _BYTES, _SEVERAL, _NONE, _WRONG = range(6)
_WRONG_KEY: Final = (_WRONG,)


@runtime_checkable
class HasKey(Protocol):
    """User's prioritizer: a class whose constructor takes no arguments, with this method."""

    def key(self, flowfile: FlowFile) -> object:
        """Return a number, a text, bytes, None or a tuple of these; the lowest comes first."""
        ...


class UserPrioritizer:
    """User's prioritizer with a guard.

    Args:
        path: Its import path, which is the name of the order in swap files.
        own: The user's object.
    """

    def __init__(self, path: str, own: HasKey) -> None:
        self.name = path
        self._own = own
        self._complained = False

    def key(self, flowfile: FlowFile) -> tuple[object, ...]:
        """Return a key that can be compared with every other."""
        try:
            return _comparable(self._own.key(flowfile))
        except Exception as error:  # noqa: BLE001 - user code must not break the queue
            if not self._complained:
                self._complained = True
                _logger.warning(
                    "prioritizer %s returns no valid key for FlowFile %d, which comes last: %s: %s",
                    self.name,
                    flowfile.id,
                    type(error).__name__,
                    error,
                )
            return _WRONG_KEY


def prioritizer_of(text: str, modules: FlowModules) -> Prioritizer:
    """Return a standard prioritizer by its name, or a user's by its import path.

    Args:
        text: `PriorityAttributePrioritizer`, or `package.module:Class`.
        modules: Modules that flows may name.

    Raises:
        InvalidRequest: It does not exist, a flow may not name it, or it is not a prioritizer.
    """
    if ":" not in text:
        return prioritizer_named(text)
    try:
        found = modules.load(text, _WHAT)
    except NotFound as error:
        raise InvalidRequest(str(error)) from error
    if not isinstance(found, type):
        raise InvalidRequest(f"prioritizer {text}: it is not a class: correct the path")
    try:
        own = found()
    except (Exception, SystemExit) as error:  # a user's class may raise anything at all
        raise InvalidRequest(
            f"prioritizer {text} cannot be created ({type(error).__name__}: {error}): its class "
            "must take no arguments"
        ) from error
    if not isinstance(own, HasKey):
        raise InvalidRequest(f"{text} is not a prioritizer: give its class a method key(flowfile)")
    return UserPrioritizer(text, own)


def check_prioritizer(text: str, modules: FlowModules) -> None:
    """Check that a flow may use a prioritizer, without importing anything.

    Raises:
        InvalidRequest: The errors of `prioritizer_of` that can be detected without the class.
    """
    if ":" not in text:
        prioritizer_named(text)
        return
    try:
        modules.check(text, _WHAT)
    except NotFound as error:
        raise InvalidRequest(str(error)) from error


def _comparable(value: object) -> tuple[object, ...]:
    if isinstance(value, bool | int | float):
        if isinstance(value, float) and math.isnan(value):
            raise ValueError("the key is NaN, which cannot be compared")
        return (_NUMBER, value)
    if isinstance(value, str):
        return (_TEXT, value)
    if isinstance(value, bytes):
        return (_BYTES, value)
    if isinstance(value, tuple):
        return (_SEVERAL, tuple(_comparable(part) for part in value))
    if value is None:
        return (_NONE,)
    raise TypeError(
        f"a key must be a number, text, bytes, None or a tuple, not {type(value).__name__}"
    )
