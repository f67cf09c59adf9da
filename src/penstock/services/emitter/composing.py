"""Combination of several sinks: each record to all of them, or to those of its feed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from penstock.core.errors import PenstockError, Unavailable
from penstock.core.metrics import Sample
from penstock.services.emitter.emitter import Record, Sink


class ComposingSink:
    """Passes each record to all of its sinks, even if one fails."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)

    def accept(self, record: Record) -> None:
        """Pass a record to all sinks; raise the last failure."""
        failure: Exception | None = None
        for sink in self._sinks:
            # A boundary like `ServiceEmitter.emit`, which counts and logs this exception.
            try:
                sink.accept(record)
            except Exception as error:  # noqa: BLE001
                failure = error
        if failure is not None:
            raise failure

    def start(self) -> None:
        """Start all."""
        for sink in self._sinks:
            sink.start()

    def flush(self) -> None:
        """Flush all; raises Unavailable, after all were flushed, if any failed."""
        try_all("flushed", [sink.flush for sink in self._sinks])

    def stop(self) -> None:
        """Stop all; raises Unavailable, after all were stopped, if any failed."""
        try_all("stopped", [sink.stop for sink in self._sinks])

    def samples(self) -> Iterable[Sample]:
        """Return the metrics of all sinks."""
        return chain.from_iterable(sink.samples() for sink in self._sinks)


class SwitchingSink:
    """Passes each record to the sinks of its feed, as `ComposingSink` does.

    Args:
        by_feed: The sinks of feeds; records of a feed with an empty list are dropped.
        otherwise: The sinks of all other feeds.
    """

    def __init__(self, by_feed: Mapping[str, Sequence[Sink]], otherwise: Sequence[Sink]) -> None:
        self._by_feed = {feed: ComposingSink(sinks) for feed, sinks in by_feed.items()}
        self._otherwise = ComposingSink(otherwise)
        # One sink may serve several feeds, but is started and stopped once.
        every = chain(otherwise, *by_feed.values())
        self._all = ComposingSink(list({id(sink): sink for sink in every}.values()))

    def accept(self, record: Record) -> None:
        """Pass a record to the sinks of its feed; raise the last failure."""
        self._by_feed.get(record.feed, self._otherwise).accept(record)

    def start(self) -> None:
        """Start all."""
        self._all.start()

    def flush(self) -> None:
        """Flush all; raises Unavailable, after all were flushed, if any failed."""
        self._all.flush()

    def stop(self) -> None:
        """Stop all; raises Unavailable, after all were stopped, if any failed."""
        self._all.stop()

    def samples(self) -> Iterable[Sample]:
        """Return the metrics of all sinks."""
        return self._all.samples()


def try_all(what: str, calls: Sequence[Callable[[], None]]) -> None:
    """Make all calls.

    Raises:
        Unavailable: Some failed; the message lists all failures.
    """
    failures: list[str] = []
    for call in calls:
        try:
            call()
        except (PenstockError, OSError) as error:
            failures.append(str(error))
    if failures:
        raise Unavailable(f"not all sinks of events were {what}: {'; '.join(failures)}")
