"""Wait and Notify: processors that hold FlowFiles until signals arrive.

Owns both processors, the signal counts (`SignalCounts`, pure) and the processor state in which
the two share them by name.

A signal changes before the commit of the FlowFile that changed it, so each change is marked
with the uuid of that FlowFile. If the FlowFile is processed again after a crash, its mark exists
already, and the signal does not change again. After the commit the mark is removed, and the count
stays.

Invariants: a FlowFile is counted once, and a count releases one FlowFile, even after a crash at
any point. A signal with a count of zero and without marks is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, TypeVar

import msgspec

from penstock.core.errors import CorruptData, InvalidRequest
from penstock.flow.flowfile import UUID
from penstock.flow.processor import (
    PERIOD,
    ExpressionProperty,
    FlowFile,
    InputRequirement,
    Problem,
    ProcessContext,
    ProcessError,
    Processor,
    ProcessSession,
    Property,
    Relationship,
    StateManager,
)
from penstock.flow.processors.failure import WRITES_REASON, fail

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


class SignalCounts:
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


_T = TypeVar("_T")

_BATCH_FLOWFILES: Final = 200
_SIGNALS_MAX: Final = 5_000
_WAITS_SINCE: Final = "wait.since"


def _name(text: str) -> None:
    if not text:
        raise InvalidRequest("the signal's name is empty: use an attribute that every FlowFile has")


class Notify(Processor):
    """Counts signals. FlowFiles in a Wait with the same `signals` wait for them.

    A signal's name is a text with expressions, such as the id of a batch that was split. A FlowFile
    counts once, even if it is processed again after a crash.
    """

    input = InputRequirement.REQUIRED
    tags = ("signal", "wait", "count", "join")
    state = "Counts by signal, in a state that it shares with Wait by the name in `signals`."
    reads_attributes: ClassVar[Mapping[str, str]] = {"of the signal": "Attributes in `signal`."}
    writes_attributes: ClassVar[Mapping[str, str]] = WRITES_REASON

    signal = ExpressionProperty(str, about="Name of the signal.", validator=_name)
    signals = Property(
        str, default="signals", about="Name of the shared state; equal to that of Wait."
    )
    counter = ExpressionProperty(
        str, default="default", about="Counter of the signal, which may have several."
    )
    count = ExpressionProperty(int, default="1", about="Count of a FlowFile, 1 or more.")
    keep_for = Property(
        PERIOD,
        default="1 day",
        about="How long an unchanged signal is kept.",
    )

    success = Relationship("FlowFiles that were counted.")
    failure = Relationship(
        "The expression of the name or count fails, or there are too many signals."
    )

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Count a batch."""
        flowfiles = session.get_many(_BATCH_FLOWFILES)
        if not flowfiles:
            return
        now_ms = context.clock.now_ms()
        wanted: list[tuple[FlowFile, str, str, int]] = []
        for flowfile in flowfiles:
            try:
                wanted.append((flowfile, *self._wanted(flowfile, now_ms)))
            except ProcessError as error:
                fail(context, session, flowfile, self.failure, error)

        def give(signals: SignalCounts) -> list[str]:
            forgotten = signals.forget(now_ms - self.keep_for)
            for flowfile, name, counter, count in wanted:
                signals.give(name, counter, count, flowfile.attributes[UUID], now_ms)
            if len(signals) > _SIGNALS_MAX:
                raise InvalidRequest(f"more than {_SIGNALS_MAX:,} signals were not taken")
            return forgotten

        given = [flowfile for flowfile, *_ in wanted]
        place = context.state.shared(self.signals)
        try:
            forgotten = _changed(place, give)
        except InvalidRequest as error:
            reason = (
                f"signals {self.signals!r} are full: {error}; add a Wait that takes them, or "
                "lower keep_for"
            )
            for flowfile in given:
                fail(context, session, flowfile, self.failure, reason)
            return
        for name in forgotten:
            context.log.warning(
                "signal %r was counted, but no FlowFile waited for it: it is removed", name
            )
        session.transfer(given, self.success)
        session.on_committed(lambda: _mark_committed(place, given))

    def _wanted(self, flowfile: FlowFile, now_ms: int) -> tuple[str, str, int]:
        name = self.signal.of(flowfile, now_ms=now_ms)
        counter = self.counter.of(flowfile, now_ms=now_ms)
        count = self.count.of(flowfile, now_ms=now_ms)
        if count < 1 or not counter:
            raise ProcessError(
                f"the count {count} for counter {counter!r} is invalid: use 1 or more, and a name"
            )
        return name, counter, count


class Wait(Processor):
    """Holds FlowFiles until a signal has reached a count.

    Connect `wait` back to this processor: a FlowFile that goes there is checked again after the
    penalty period. Each released FlowFile subtracts its target from the signal's count. If
    `take` is false, nothing is subtracted, and all FlowFiles are released once the target is
    reached.
    """

    input = InputRequirement.REQUIRED
    tags = ("signal", "notify", "hold", "join")
    state = (
        "Counts that were taken, in a state that it shares with Notify by the name in `signals`."
    )
    reads_attributes: ClassVar[Mapping[str, str]] = {
        "of the signal": "Attributes in `signal`.",
        "wait.since": "Time when it began to wait.",
    }
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "wait.since": "Time when it began to wait, epoch milliseconds; removed when it is "
        "released.",
        **WRITES_REASON,
    }

    signal = ExpressionProperty(str, about="Name of the signal.", validator=_name)
    signals = Property(
        str, default="signals", about="Name of the shared state; equal to that of Notify."
    )
    counter = ExpressionProperty(
        str, default="", about="Counter to check; empty: the sum of all counters."
    )
    target = ExpressionProperty(
        int, default="1", about="Count to wait for, such as ${fragment.count}."
    )
    take = Property(
        bool, default=True, about="Whether a released FlowFile subtracts its target from the count."
    )
    expires_after = Property(PERIOD, default="10 min", about="Maximum time that a FlowFile waits.")

    success = Relationship("The signal has reached the count.")
    wait = Relationship("The signal has not reached the count; connect this back to the processor.")
    expired = Relationship("The FlowFile waited too long.")
    failure = Relationship("The expression of the name or target fails.")

    def check(self) -> Iterator[Problem]:
        """Yield errors that involve several properties."""
        if self.target.is_constant and self.target.of() < 1:
            yield Problem("target", "must be 1 or more")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Check a batch."""
        flowfiles = session.get_many(_BATCH_FLOWFILES)
        if not flowfiles:
            return
        now_ms = context.clock.now_ms()
        waiting: list[tuple[FlowFile, str, str, int]] = []
        for flowfile in flowfiles:
            try:
                waiting.append((flowfile, *self._wanted(flowfile, now_ms)))
            except ProcessError as error:
                fail(context, session, flowfile, self.failure, error)

        def choose(signals: SignalCounts) -> list[FlowFile]:
            return [
                flowfile
                for flowfile, name, counter, target in waiting
                if (
                    signals.take(name, counter, target, flowfile.attributes[UUID], now_ms)
                    if self.take
                    else signals.total(name, counter) >= target
                )
            ]

        place = context.state.shared(self.signals)
        free = _changed(place, choose)
        self._send(session, free, [flowfile for flowfile, *_ in waiting], now_ms)
        if free and self.take:
            session.on_committed(lambda: _mark_committed(place, free))

    def _send(
        self,
        session: ProcessSession,
        free: Sequence[FlowFile],
        flowfiles: Sequence[FlowFile],
        now_ms: int,
    ) -> None:
        going = {flowfile.id for flowfile in free}
        for flowfile in flowfiles:
            since_ms = _since_ms(flowfile, now_ms)
            over = since_ms + self.expires_after <= now_ms
            if flowfile.id in going or over:
                session.remove_attributes(flowfile, [_WAITS_SINCE])
                session.transfer(flowfile, self.success if flowfile.id in going else self.expired)
                continue
            session.put_attributes(flowfile, {_WAITS_SINCE: str(since_ms)})
            session.penalize(flowfile)
            session.transfer(flowfile, self.wait)

    def _wanted(self, flowfile: FlowFile, now_ms: int) -> tuple[str, str, int]:
        target = self.target.of(flowfile, now_ms=now_ms)
        if target < 1:
            raise ProcessError(f"the target {target} is invalid: use 1 or more")
        return (
            self.signal.of(flowfile, now_ms=now_ms),
            self.counter.of(flowfile, now_ms=now_ms),
            target,
        )


def _since_ms(flowfile: FlowFile, now_ms: int) -> int:
    text = flowfile.attributes.get(_WAITS_SINCE, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else now_ms


def _changed(place: StateManager, change: Callable[[SignalCounts], _T]) -> _T:
    """Change the signals; repeat if another thread changed them meanwhile."""
    while True:
        known = place.get()
        signals = SignalCounts(known)
        result = change(signals)
        wanted = signals.encode()
        if wanted == known or place.replace(known, wanted):
            return result


def _mark_committed(place: StateManager, flowfiles: Sequence[FlowFile]) -> None:
    uuids = [flowfile.attributes[UUID] for flowfile in flowfiles]
    _changed(place, lambda signals: signals.committed(uuids))
