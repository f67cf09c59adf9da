"""Spec of a supervisor that reads the unread messages of another one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest
from penstock.indexing.specs.stream_config import BoundedStreamConfig
from penstock.indexing.specs.task_context import uses_concurrent_locks, with_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.indexing.specs import SupervisorSpec
    from penstock.indexing.supervisor.standing import Standing


def check_backfill(standing: Standing, task_context: Mapping[str, object]) -> None:
    """Check that a supervisor may leave its unpublished messages to another one.

    Args:
        standing: The supervisor.
        task_context: Default context of tasks.

    Raises:
        InvalidRequest: Its spec or its state does not allow it.
    """
    spec = standing.spec
    name = f"supervisor {spec.supervisor_id}"
    if spec.io.use_earliest_offset:
        raise InvalidRequest(
            f"{name} starts at the earliest message, so it would read everything again: set"
            " useEarliestOffset to false",
            place="spec.ioConfig.useEarliestOffset",
        )
    if not uses_concurrent_locks(with_defaults(spec.context, task_context)):
        raise InvalidRequest(
            f"{name}: two supervisors will append to {spec.data_schema.data_source} at once: set"
            " useConcurrentLocks in its context",
            place="context.useConcurrentLocks",
        )
    if standing.state != "RUNNING":
        raise InvalidRequest(f"{name} is {standing.state}: a backfill requires state RUNNING")
    _piece(standing)


def backfill_spec(standing: Standing, token: str, task_count: int | None) -> SupervisorSpec:
    """Return the spec of a supervisor that reads from the committed offsets up to the latest.

    Args:
        standing: The supervisor that leaves the messages.
        token: Makes the new id unique.
        task_count: Number of task groups, None for the same number.

    Raises:
        InvalidRequest: All messages are published.
    """
    spec, piece = standing.spec, _piece(standing)
    bounds = BoundedStreamConfig(
        start_sequence_numbers={p: start for p, (start, _) in piece.items()},
        end_sequence_numbers={p: end for p, (_, end) in piece.items()},
    )
    io = spec.io.model_copy(
        update={
            "bounded_stream_config": bounds,
            "auto_scaler_config": None,
            "task_count": task_count or spec.io.task_count,
        }
    )
    return spec.model_copy(
        update={
            "id": f"{spec.supervisor_id}_backfill_{token[:8]}",
            "spec": spec.spec.model_copy(update={"io_config": io}),
        }
    )


def _piece(standing: Standing) -> dict[str, tuple[int, int]]:
    """Return the uncommitted range of each stream partition, up to its last seen end."""
    latest, _ = standing.latest()
    piece = {
        str(p): (offset, latest[p])
        for p, offset in standing.committed().items()
        if offset < latest.get(p, offset)
    }
    if not piece:
        raise InvalidRequest(
            f"supervisor {standing.spec.supervisor_id} has published all messages: there is"
            " nothing to backfill"
        )
    return piece
