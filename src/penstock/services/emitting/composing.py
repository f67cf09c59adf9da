"""Several sinks as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from penstock.core.errors import PenstockError, Unavailable
from penstock.core.metrics import Sample
from penstock.services.emitting.emitter import Record, Sink


class ComposingSink:
    """Gives each record to all of its sinks; one that fails keeps it from no other."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)

    def accept(self, record: Record) -> None:
        """Give a record to all; raises what the last failing one raised."""
        failure: Exception | None = None
        for sink in self._sinks:
            # A boundary as `ServiceEmitter.emit`, which counts and logs what is raised here.
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
        """Return the metrics of all."""
        return chain.from_iterable(sink.samples() for sink in self._sinks)


def try_all(what: str, calls: Sequence[Callable[[], None]]) -> None:
    """Make all calls.

    Raises:
        Unavailable: Some failed; the message holds what each of them said.
    """
    failures: list[str] = []
    for call in calls:
        try:
            call()
        except (PenstockError, OSError) as error:
            failures.append(str(error))
    if failures:
        raise Unavailable(f"not everything that takes events was {what}: {'; '.join(failures)}")
