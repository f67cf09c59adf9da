"""Ends of supervisors: the release of the id, and the ends of those with invalid specs.

On the overlord's mailbox. An invalid spec was stored by another release of Penstock. Its supervisor
cannot run, but the name of its topic suffices to let the broker delete messages again. Does not own
the end of tasks without a supervisor.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import NotFound, PenstockError
from penstock.indexing.supervisor import cursor_name
from penstock.mailbox.background_calls import CallDispatcher

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from penstock.indexing.supervisor import SupervisorPorts
    from penstock.storage.metadata import MetadataStore

_RETRY: Final = RetryPolicy(1_000, 60_000)

_log = logging.getLogger(__name__)


def not_read(supervisor_id: str, why: str) -> NotFound:
    """Return the error for a request about a supervisor with an invalid stored spec."""
    return NotFound(
        f"supervisor {supervisor_id!r} does not run, because its stored spec is invalid: {why}."
        " Submit a valid spec, or terminate it"
    )


def release(metadata: MetadataStore, supervisor_id: str) -> None:
    """Store that a supervisor has ended, so that its id may be used again.

    If the store does not answer, the next term repeats it, which is harmless.
    """
    try:
        metadata.supervisors.release(supervisor_id)
    except PenstockError as error:
        _log.warning("the end of supervisor %s is not stored: %s", supervisor_id, error)


class UnreadableEnds:
    """Ends of supervisors with invalid specs.

    Args:
        ports: The dependencies of supervisors.
        running: The ids of running supervisors, which then own the cursors of their ids.
    """

    def __init__(self, ports: SupervisorPorts, running: Container[str]) -> None:
        self._ports = ports
        self._calls = CallDispatcher(ports.lanes, ports.processor)
        self._running = running
        self._stopped = False

    def stop(self) -> None:
        """Start no further attempts: the term has ended."""
        self._stopped = True

    def end(self, supervisor_id: str, payload: Mapping[str, object]) -> None:
        """Drop the cursor of a supervisor, with retries; then release its id."""
        topic = _topic_of(payload)
        if topic is None:
            _log.error(
                "supervisor %s: its spec names no topic, so a cursor that the broker keeps for it"
                " stays: drop %s there",
                *(supervisor_id, cursor_name(supervisor_id)),
            )
            return
        self._try(supervisor_id, topic, 0)

    def _try(self, supervisor_id: str, topic: str, failures: int) -> None:
        if self._stopped or supervisor_id in self._running:
            return

        def let_go() -> None:
            partitions = sorted(self._ports.metadata.offsets(supervisor_id) or {})
            self._ports.broker.drop_cursor(topic, cursor_name(supervisor_id), partitions)

        def again(error: PenstockError) -> None:
            delay_ms = _RETRY.delay_ms(failures + 1)
            _log.warning("the cursor of supervisor %s is dropped later: %s", supervisor_id, error)
            self._ports.processor.timers.schedule_after(
                delay_ms,
                lambda: self._try(supervisor_id, topic, failures + 1),
                "drop a cursor",
            )

        # On the lane of a supervisor with this id, so that requests of one that is submitted now
        # run after this.
        lane, metadata = f"broker-{supervisor_id}", self._ports.metadata
        self._calls.call(lane, let_go, lambda _none: release(metadata, supervisor_id), again)


def _topic_of(payload: Mapping[str, object]) -> str | None:
    """Return the topic that a spec reads, even if the rest of the spec is invalid."""
    spec = payload.get("spec")
    io = spec.get("ioConfig") if isinstance(spec, dict) else None
    topic = io.get("topic") if isinstance(io, dict) else None
    return topic if isinstance(topic, str) and topic else None
