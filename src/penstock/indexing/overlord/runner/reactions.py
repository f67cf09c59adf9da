"""Reactions of the runner to a worker that announces a task: one pure table.

| worker announces | the runner has it | reaction |
|---|---|---|
| running | no; active in the queue | assign the task to this worker |
| running | no; not active | have the worker stop it |
| running | pending, or handed to this worker | it runs there |
| running | running at this worker | update its address |
| running | at another worker | have this worker stop it |
| running | at a worker that is not announced and was never seen | it runs there |
| ended | no; active in the queue | accept the end |
| ended | no; not active | have the worker forget it |
| ended | pending, or at this worker | accept the end |
| ended | at another worker | have this worker forget it, the other worker's report is valid |
| ended | at a worker that is not announced and was never seen | accept the end |
| no task | confirmed at this worker | it has failed: it disappeared |
| no task | handed to this worker, the answer was lost | it is pending again |
"""

from __future__ import annotations

from enum import Enum

from penstock.indexing.ports import TaskState


class Phase(Enum):
    """Progress of a task in the runner.

    PENDING: without a worker. RESTORED: a former overlord stored this worker for it, and the
    worker has not reported it in this term. SENDING: being sent to a worker. UNSURE: the worker did
    not answer and may have it. ACCEPTED: the worker has stored it. RUNNING: the worker reports that
    it runs.
    """

    PENDING = "pending"
    RESTORED = "restored"
    SENDING = "sending"
    UNSURE = "unsure"
    ACCEPTED = "accepted"
    RUNNING = "running"


class TaskLocationSeen(Enum):
    """Place of a task in the runner, relative to the worker that announces it."""

    UNKNOWN = "unknown"
    """Active neither in the runner nor in the queue."""
    QUEUED = "queued"
    """Active in the queue, unknown to the runner."""
    PENDING = "pending"
    """In the runner, without a worker."""
    HANDED = "handed"
    """Handed to this worker, which has not reported yet that it runs."""
    HERE = "here"
    """Running at this worker."""
    ELSEWHERE = "elsewhere"
    """At another worker."""
    ABSENT = "absent"
    """A former overlord stored another worker for it, which is not announced and never was in this
    term: the worker with the task's folder has a new name, as after an upgrade or a restore."""


class Reaction(Enum):
    """Reaction of the runner."""

    RUN = "run"
    """The task runs there: update its phase and address."""
    END = "end"
    """Report its end."""
    DISMISS = "dismiss"
    """Have the worker stop or forget it."""


def react(state: TaskState, place: TaskLocationSeen) -> Reaction:
    """Return the reaction to a worker that announces a task in a state."""
    if place in {TaskLocationSeen.UNKNOWN, TaskLocationSeen.ELSEWHERE}:
        return Reaction.DISMISS
    return Reaction.END if state.complete else Reaction.RUN


class Miss(Enum):
    """Reaction to a worker that does not list a task assigned to it."""

    LOST = "lost"
    TAKE_BACK = "take back"
    WAIT = "wait"


def missing(phase: Phase, *, since: int, asked: int) -> Miss:
    """Return the reaction to a full report of a worker that does not list a task.

    Args:
        phase: The task's phase.
        since: When the phase began, in the runner's count of events.
        asked: When the report was requested; it cannot show anything that happened later.
    """
    if since >= asked or phase in {Phase.PENDING, Phase.SENDING}:
        return Miss.WAIT
    return Miss.TAKE_BACK if phase is Phase.UNSURE else Miss.LOST
