"""Signals that Notify counts and Wait consumes; no crash doubles or loses a count. Does no I/O.

Owns the counting. Does not own its durability, nor FlowFiles (`waiting`).

A signal is changed before the session of the FlowFile that changed it commits. Therefore each
change is marked with that FlowFile's uuid: a FlowFile that is processed again after a crash finds
its mark, and changes nothing. After the commit the mark is removed, and its count stays.

Invariants: a FlowFile counts once, however often it is processed before its commit. A count that
was taken is not available to others. A signal without a remaining count is removed.
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
        counts: Counts by counter; counts taken from all counters together are negative, under the
            empty name.
        given: Counter and count by the uuid of FlowFiles whose commit is unknown.
        taken: The same for released FlowFiles.
        touched_ms: Time of the last change, epoch milliseconds.
    """

    counts: dict[str, int] = {}
    given: dict[str, tuple[str, int]] = {}
    taken: dict[str, tuple[str, int]] = {}
    touched_ms: int = 0

    def total(self, counter: str) -> int:
        """Return the available count of a counter, or of all."""

        def fits(name: str) -> bool:
            return counter in (ANY_COUNTER, name)

        given = sum(count for name, count in self.given.values() if fits(name))
        taken = sum(count for name, count in self.taken.values() if fits(name))
        return sum(c for name, c in self.counts.items() if fits(name)) + given - taken


_decoder: Final = msgspec.json.Decoder(Signal)


class Signals:
    """All signals of one namespace; created from a state's map, and converted back to one.

    Raises:
        CorruptData: The map is invalid.
    """

    def __init__(self, state: Mapping[str, str]) -> None:
        try:
            self._signals = {name: _decoder.decode(text) for name, text in state.items()}
        except msgspec.MsgspecError as error:
            raise CorruptData("the state of signals", 0, str(error)) from None

    def encode(self) -> dict[str, str]:
        """Return the signals as a state's map."""
        return {
            name: msgspec.json.encode(signal).decode() for name, signal in self._signals.items()
        }

    def __len__(self) -> int:
        return len(self._signals)

    def total(self, name: str, counter: str = ANY_COUNTER) -> int:
        """Return the available count of a signal."""
        signal = self._signals.get(name)
        return 0 if signal is None else signal.total(counter)

    def give(self, name: str, counter: str, count: int, giver: str, now_ms: int) -> None:
        """Count for a FlowFile; a repetition for the same one does nothing."""
        signal = self._signals.setdefault(name, Signal())
        if giver not in signal.given:
            signal.given[giver] = (counter, count)
            signal.touched_ms = now_ms

    def take(self, name: str, counter: str, count: int, taker: str, now_ms: int) -> bool:
        """Take a count from a signal for a FlowFile; return False if it is not available."""
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
        """Record that changes of FlowFiles are committed: marks are removed, counts stay."""
        gone = set(uuids)
        for name, signal in list(self._signals.items()):
            for marks, sign in ((signal.given, 1), (signal.taken, -1)):
                for uuid in gone & marks.keys():
                    counter, count = marks.pop(uuid)
                    signal.counts[counter] = signal.counts.get(counter, 0) + sign * count
            if not (signal.given or signal.taken or signal.total(ANY_COUNTER)):
                del self._signals[name]

    def forget(self, before_ms: int) -> list[str]:
        """Remove signals that were not changed since a time; return their names."""
        old = [name for name, signal in self._signals.items() if signal.touched_ms < before_ms]
        for name in old:
            del self._signals[name]
        return old
