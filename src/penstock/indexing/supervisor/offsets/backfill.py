"""Leaving what is not read yet to another supervisor: its spec. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest
from penstock.indexing.spec.config import BoundedStreamConfig
from penstock.indexing.spec.context import uses_concurrent_locks, with_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.indexing.spec import SupervisorSpec
    from penstock.indexing.supervisor.standing import Standing


def check_backfill(standing: Standing, task_context: Mapping[str, object]) -> None:
    """Say whether a supervisor may leave what it has not published to another.

    Args:
        standing: The supervisor.
        task_context: What tasks get whose spec's context does not say it.

    Raises:
        InvalidRequest: Its spec, or how it stands, does not allow it.
    """
    spec = standing.spec
    name = f"supervisor {spec.supervisor_id}"
    if spec.io.use_earliest_offset:
        raise InvalidRequest(
            f"{name} begins at the earliest message, so it would read everything again: set"
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
        raise InvalidRequest(f"{name} is {standing.state}: only one that is RUNNING can go on")
    _piece(standing)


def backfill_spec(standing: Standing, token: str, task_count: int | None) -> SupervisorSpec:
    """Return the spec of a supervisor that reads from the committed offsets up to the latest.

    Args:
        standing: The supervisor that leaves them.
        token: Makes its name unique.
        task_count: How many groups it has, None for as many.

    Raises:
        InvalidRequest: Everything is published.
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
    """Return what is not committed of each stream partition, up to where it was seen to end."""
    latest, _ = standing.latest()
    piece = {
        str(p): (offset, latest[p])
        for p, offset in standing.committed().items()
        if offset < latest.get(p, offset)
    }
    if not piece:
        raise InvalidRequest(
            f"supervisor {standing.spec.supervisor_id} has published everything there is: there is"
            " nothing to leave"
        )
    return piece
