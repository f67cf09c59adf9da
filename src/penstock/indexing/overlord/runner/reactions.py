"""What the runner does when a worker announces a task: one pure table.

| worker announces | the runner has it | reaction |
|---|---|---|
| running | not; the queue has it active | it is this worker's from now on |
| running | not; nobody wants it | have the worker stop it |
| running | pending, or handed to this worker | it runs there |
| running | running at this worker | note where it answers |
| running | at another worker | have this one stop it |
| running | at a worker that is not announced and was never seen | it runs there |
| ended | not; the queue has it active | take the end |
| ended | not; nobody wants it | have the worker forget it |
| ended | pending, or at this worker | take the end |
| ended | at another worker | have this one forget it, the other's word counts |
| ended | at a worker that is not announced and was never seen | take the end |
| nothing | sure to have been at this worker | it has failed: it disappeared |
| nothing | handed to this worker, the answer was lost | it is pending again |
"""

from __future__ import annotations

from enum import Enum

from penstock.indexing.ports import TaskState


class Phase(Enum):
    """How far the runner is with a task.

    PENDING: it waits for a worker. RESTORED: a former overlord stored this worker for it, and the
    worker has not reported it in this term. SENDING: a worker is being asked to take it. UNSURE:
    that question got no answer, the worker may have it. ACCEPTED: the worker wrote it down.
    RUNNING: the worker says that it runs.
    """

    PENDING = "pending"
    RESTORED = "restored"
    SENDING = "sending"
    UNSURE = "unsure"
    ACCEPTED = "accepted"
    RUNNING = "running"


class Place(Enum):
    """Where the runner has a task, as seen from the worker that announces it."""

    UNKNOWN = "unknown"
    """The runner and the queue do not have it active."""
    QUEUED = "queued"
    """The queue has it active, the runner does not know it."""
    PENDING = "pending"
    """The runner has it, without a worker."""
    HANDED = "handed"
    """It is handed to this worker, which has not said yet that it runs."""
    HERE = "here"
    """It runs at this worker."""
    ELSEWHERE = "elsewhere"
    """It is with another worker."""
    ABSENT = "absent"
    """A former overlord stored another worker for it, which is not announced and never was in this
    term: the worker that has the task's folder has a new name, as after an upgrade or a restore."""


class Reaction(Enum):
    """What is done."""

    RUN = "run"
    """It runs there: what the runner has of it says so, and where it answers."""
    END = "end"
    """Its end is told."""
    DISMISS = "dismiss"
    """The worker is to stop or forget it."""


def react(state: TaskState, place: Place) -> Reaction:
    """Return what to do when a worker announces a task in a state."""
    if place in {Place.UNKNOWN, Place.ELSEWHERE}:
        return Reaction.DISMISS
    return Reaction.END if state.complete else Reaction.RUN


class Miss(Enum):
    """What is done when a worker does not list a task that is counted as its."""

    LOST = "lost"
    TAKE_BACK = "take back"
    WAIT = "wait"


def missing(phase: Phase, *, since: int, asked: int) -> Miss:
    """Return what to do about a task that a worker's full report does not list.

    Args:
        phase: How far the runner is with it.
        since: When it came into that phase, in the runner's count of events.
        asked: When the report was asked for: what happened after that it cannot show.
    """
    if since >= asked or phase in {Phase.PENDING, Phase.SENDING}:
        return Miss.WAIT
    return Miss.TAKE_BACK if phase is Phase.UNSURE else Miss.LOST
