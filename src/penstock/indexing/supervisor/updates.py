"""What another version of a spec means for a supervisor that runs. Pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest
from penstock.indexing.streamplace import place_of
from penstock.indexing.taskspec import base_sequence_name

if TYPE_CHECKING:
    from penstock.indexing.spec import SupervisorSpec


class UpdateAction(Enum):
    """What is to be done: nothing, go on with the tasks there are, or with new ones."""

    NONE = "none"
    RESTART_SUPERVISOR = "restart supervisor"
    RESTART_SUPERVISOR_AND_TASKS = "restart supervisor and tasks"


def update_action(old: SupervisorSpec, new: SupervisorSpec) -> UpdateAction:
    """Return what a new spec asks for in place of the old one.

    Tasks are restarted if what they do, or how they share the work, is another; while a scaler sets
    the number of groups, another `taskCount` is no difference.
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
    """Return the spec that is to run: one that does not say `taskCount` goes on with as many.

    That is within the bounds of its scaler; the first of its supervisor begins as that one says.

    Raises:
        InvalidRequest: The new one reads another stream, or one that cannot be read.
    """
    place_of(new.io)
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
    """Say whether a spec may follow one that reads a stream.

    Raises:
        InvalidRequest: It reads another one: the committed offsets would mean nothing there.
    """
    if spec.io.stream != stream:
        raise InvalidRequest(
            f"supervisor {spec.supervisor_id} reads the topic {stream}, its committed offsets mean"
            f" nothing in {spec.io.stream}: give the new spec another id",
            place="spec.ioConfig.topic",
        )


def with_task_count(spec: SupervisorSpec, count: int) -> SupervisorSpec:
    """Return the same spec with another number of groups."""
    io = spec.io.model_copy(update={"task_count": count})
    return spec.model_copy(update={"spec": spec.spec.model_copy(update={"io_config": io})})


def _without_scaled_count(spec: SupervisorSpec) -> SupervisorSpec:
    return spec if spec.io.scaler is None else with_task_count(spec, 1)
