"""Effect of a new version of a spec on a running supervisor. Pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest
from penstock.indexing.stream_location import location_of
from penstock.indexing.task_spec import base_sequence_name

if TYPE_CHECKING:
    from penstock.indexing.specs import SupervisorSpec


class UpdateAction(Enum):
    """Required action: none, continue with the current tasks, or with new ones."""

    NONE = "none"
    RESTART_SUPERVISOR = "restart supervisor"
    RESTART_SUPERVISOR_AND_TASKS = "restart supervisor and tasks"


def update_action(old: SupervisorSpec, new: SupervisorSpec) -> UpdateAction:
    """Return the action required to replace the old spec by a new one.

    Tasks are restarted if their work, or how they share it, has changed. While a scaler sets the
    number of groups, a different `taskCount` is not a change.
    """
    if _without_scaled_count(old) == _without_scaled_count(new):
        return UpdateAction.NONE
    same_work = base_sequence_name(old, {}) == base_sequence_name(new, {})
    same_count = old.io.task_count == new.io.task_count
    same_replicas = old.io.server_priorities == new.io.server_priorities
    if same_work and same_count and same_replicas and old.suspended == new.suspended:
        return UpdateAction.RESTART_SUPERVISOR
    return UpdateAction.RESTART_SUPERVISOR_AND_TASKS


def succeed(old: SupervisorSpec | None, new: SupervisorSpec) -> SupervisorSpec:
    """Return the spec to run: without `taskCount`, the current number of groups is kept.

    The number is limited to the bounds of the scaler; a new supervisor starts with the scaler's.

    Raises:
        InvalidRequest: The new spec reads another stream, or its stream is invalid.
    """
    location_of(new.io)
    if old is not None:
        check_stream(new, old.io.stream)
    if "task_count" in new.io.model_fields_set:
        return new
    count = new.io.first_task_count if old is None else old.io.task_count
    scaler = new.io.scaler
    if scaler is not None:
        count = min(max(count, scaler.task_count_min), scaler.task_count_max)
    return with_task_count(new, count)


def check_stream(spec: SupervisorSpec, stream: str) -> None:
    """Check that a spec may follow one that reads a stream.

    Raises:
        InvalidRequest: It reads another stream, in which the committed offsets are not valid.
    """
    if spec.io.stream != stream:
        raise InvalidRequest(
            f"supervisor {spec.supervisor_id} reads the topic {stream}, its committed offsets are"
            f" not valid in {spec.io.stream}: give the new spec another id",
            place="spec.ioConfig.topic",
        )


def with_task_count(spec: SupervisorSpec, count: int) -> SupervisorSpec:
    """Return a copy of a spec with another number of groups."""
    io = spec.io.model_copy(update={"task_count": count})
    return spec.model_copy(update={"spec": spec.spec.model_copy(update={"io_config": io})})


def _without_scaled_count(spec: SupervisorSpec) -> SupervisorSpec:
    return spec if spec.io.scaler is None else with_task_count(spec, 1)
