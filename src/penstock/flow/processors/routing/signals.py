"""Signals that FlowFiles give and others wait for: counts that no crash doubles or loses. Pure.

Owns the counting. Does not own where it is durable, nor FlowFiles (`waiting`).

A signal is changed before the session commits whose FlowFile changed it, so each change is marked
with that FlowFile's uuid: one that comes again after a crash finds its mark, and changes nothing.
The mark goes, and its count stays, once the commit is done.

Invariants: a FlowFile counts once, however often it comes before its commit; what one took nobody
else takes; a signal of which nothing is left is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from penstock.core.errors import CorruptData

ANY_COUNTER: Final = ""


class Signal(msgspec.Struct):
    """One signal.

    Attributes:
        counts: By counter; what was taken of all counters together is negative, under no name.
        given: Counter and count by the uuid of FlowFiles whose commit is not known yet.
        taken: The same of FlowFiles that were let go.
        touched_ms: When it was changed last, epoch milliseconds.
    """

    counts: dict[str, int] = {}
    given: dict[str, tuple[str, int]] = {}
    taken: dict[str, tuple[str, int]] = {}
    touched_ms: int = 0

    def total(self, counter: str) -> int:
        """Return what there is to take of a counter, or of all."""

        def fits(name: str) -> bool:
            return counter in (ANY_COUNTER, name)

        given = sum(count for name, count in self.given.values() if fits(name))
        taken = sum(count for name, count in self.taken.values() if fits(name))
        return sum(c for name, c in self.counts.items() if fits(name)) + given - taken


_decoder: Final = msgspec.json.Decoder(Signal)


class Signals:
    """All signals of one name space; made from a state's map, and back to one.

    Raises:
        CorruptData: The map is none of `encode`.
    """

    def __init__(self, state: Mapping[str, str]) -> None:
        try:
            self._signals = {name: _decoder.decode(text) for name, text in state.items()}
        except msgspec.MsgspecError as error:
            raise CorruptData("the signals", 0, str(error)) from None

    def encode(self) -> dict[str, str]:
        """Return them as a state's map."""
        return {
            name: msgspec.json.encode(signal).decode() for name, signal in self._signals.items()
        }

    def __len__(self) -> int:
        return len(self._signals)

    def total(self, name: str, counter: str = ANY_COUNTER) -> int:
        """Return what there is to take of a signal."""
        signal = self._signals.get(name)
        return 0 if signal is None else signal.total(counter)

    def give(self, name: str, counter: str, count: int, giver: str, now_ms: int) -> None:
        """Count for a FlowFile; again for the same one does nothing."""
        signal = self._signals.setdefault(name, Signal())
        if giver not in signal.given:
            signal.given[giver] = (counter, count)
            signal.touched_ms = now_ms

    def take(self, name: str, counter: str, count: int, taker: str, now_ms: int) -> bool:
        """Take of a signal for a FlowFile; False if there is not enough."""
        signal = self._signals.get(name)
        if signal is None:
            return False
        if taker in signal.taken:
            return True
        if signal.total(counter) < count:
            return False
        signal.taken[taker] = (counter, count)
        signal.touched_ms = now_ms
        return True

    def committed(self, uuids: Iterable[str]) -> None:
        """Learn that these FlowFiles gave or took for good; marks go, counts stay."""
        gone = set(uuids)
        for name, signal in list(self._signals.items()):
            for marks, sign in ((signal.given, 1), (signal.taken, -1)):
                for uuid in gone & marks.keys():
                    counter, count = marks.pop(uuid)
                    signal.counts[counter] = signal.counts.get(counter, 0) + sign * count
            if not (signal.given or signal.taken or signal.total(ANY_COUNTER)):
                del self._signals[name]

    def forget(self, before_ms: int) -> list[str]:
        """Forget signals that were not changed since; return their names."""
        old = [name for name, signal in self._signals.items() if signal.touched_ms < before_ms]
        for name in old:
            del self._signals[name]
        return old
