"""Terminated supervisors whose specs cannot be read: what their sources keep for them is let go.

On the overlord's mailbox. Such a spec was taken by another release of Penstock. Nobody can run its
supervisor to an end, but the name of its topic is enough to let the broker delete messages again.
Does not own the tasks: those have no supervisor, and are ended for that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import NotFound, PenstockError
from penstock.indexing.errand import Calls, Retry
from penstock.indexing.supervisor import cursor_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.indexing.supervisor import SupervisorPorts

_RETRY: Final = Retry(1_000, 60_000)

_log = logging.getLogger(__name__)


def not_read(supervisor_id: str, why: str) -> NotFound:
    """Return the error of a question about one whose stored spec cannot be read."""
    return NotFound(
        f"supervisor {supervisor_id!r} does not run, as its stored spec cannot be read: {why}."
        " Submit one that can be, or terminate it"
    )


class UnreadableEnds:
    """The ends of such supervisors.

    Args:
        ports: What supervisors work with.
        is_void: Whether a cursor is somebody else's by now, or nobody here is to care for it.
        gone: Told of each whose cursor is let go.
    """

    def __init__(
        self,
        ports: SupervisorPorts,
        *,
        is_void: Callable[[str], bool],
        gone: Callable[[str], None],
    ) -> None:
        self._ports = ports
        self._calls = Calls(ports.lanes, ports.processor)
        self._is_void = is_void
        self._gone = gone

    def end(self, supervisor_id: str, payload: Mapping[str, object]) -> None:
        """Let go of what a supervisor's source keeps, as often as it takes."""
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
        if self._is_void(supervisor_id):
            return

        def let_go() -> None:
            partitions = sorted(self._ports.metadata.offsets(supervisor_id) or {})
            self._ports.broker.drop_cursor(topic, cursor_name(supervisor_id), partitions)

        def again(error: PenstockError) -> None:
            delay_ms = _RETRY.delay_ms(failures + 1)
            _log.warning("the cursor of supervisor %s is let go later: %s", supervisor_id, error)
            self._ports.processor.timers.schedule_after(
                delay_ms,
                lambda: self._try(supervisor_id, topic, failures + 1),
                "let go of a cursor",
            )

        # On the lane of a supervisor of this name: what one that is submitted now asks for comes
        # behind this.
        lane = f"broker-{supervisor_id}"
        self._calls.call(lane, let_go, lambda _none: self._gone(supervisor_id), again)


def _topic_of(payload: Mapping[str, object]) -> str | None:
    """Return the topic that a spec reads, of whatever else it consists."""
    spec = payload.get("spec")
    io = spec.get("ioConfig") if isinstance(spec, dict) else None
    topic = io.get("topic") if isinstance(io, dict) else None
    return topic if isinstance(topic, str) and topic else None
