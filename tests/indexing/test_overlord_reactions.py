"""Each cell of the table of what workers announce."""

from __future__ import annotations

import pytest

from penstock.indexing.overlord.runner.reactions import (
    Miss,
    Phase,
    Reaction,
    TaskLocationSeen,
    missing,
    react,
)
from penstock.indexing.ports import TaskState

RUNNING, ENDED = [TaskState.RUNNING], [TaskState.SUCCESS, TaskState.FAILED]


@pytest.mark.parametrize(
    ("states", "place", "reaction"),
    [
        (RUNNING, TaskLocationSeen.UNKNOWN, Reaction.DISMISS),
        (RUNNING, TaskLocationSeen.QUEUED, Reaction.RUN),
        (RUNNING, TaskLocationSeen.PENDING, Reaction.RUN),
        (RUNNING, TaskLocationSeen.HANDED, Reaction.RUN),
        (RUNNING, TaskLocationSeen.HERE, Reaction.RUN),
        (RUNNING, TaskLocationSeen.ELSEWHERE, Reaction.DISMISS),
        (RUNNING, TaskLocationSeen.ABSENT, Reaction.RUN),
        (ENDED, TaskLocationSeen.UNKNOWN, Reaction.DISMISS),
        (ENDED, TaskLocationSeen.QUEUED, Reaction.END),
        (ENDED, TaskLocationSeen.PENDING, Reaction.END),
        (ENDED, TaskLocationSeen.HANDED, Reaction.END),
        (ENDED, TaskLocationSeen.HERE, Reaction.END),
        (ENDED, TaskLocationSeen.ELSEWHERE, Reaction.DISMISS),
        (ENDED, TaskLocationSeen.ABSENT, Reaction.END),
    ],
)
def test_what_a_worker_announces(states, place, reaction):
    for state in states:
        assert react(state, place) is reaction


@pytest.mark.parametrize(
    ("phase", "miss"),
    [
        (Phase.PENDING, Miss.WAIT),
        (Phase.SENDING, Miss.WAIT),
        (Phase.UNSURE, Miss.TAKE_BACK),
        (Phase.RESTORED, Miss.LOST),
        (Phase.ACCEPTED, Miss.LOST),
        (Phase.RUNNING, Miss.LOST),
    ],
)
def test_what_a_worker_does_not_list(phase, miss):
    assert missing(phase, since=4, asked=5) is miss
    # What came about after the question cannot be in the answer.
    assert missing(phase, since=5, asked=5) is Miss.WAIT
