"""Each cell of the table of what workers announce."""

from __future__ import annotations

import pytest

from penstock.indexing.overlord.runner.reactions import (
    Miss,
    Phase,
    Place,
    Reaction,
    missing,
    react,
)
from penstock.indexing.ports import TaskState

RUNNING, ENDED = [TaskState.RUNNING], [TaskState.SUCCESS, TaskState.FAILED]


@pytest.mark.parametrize(
    ("states", "place", "reaction"),
    [
        (RUNNING, Place.UNKNOWN, Reaction.DISMISS),
        (RUNNING, Place.QUEUED, Reaction.RUN),
        (RUNNING, Place.PENDING, Reaction.RUN),
        (RUNNING, Place.HANDED, Reaction.RUN),
        (RUNNING, Place.HERE, Reaction.RUN),
        (RUNNING, Place.ELSEWHERE, Reaction.DISMISS),
        (RUNNING, Place.ABSENT, Reaction.RUN),
        (ENDED, Place.UNKNOWN, Reaction.DISMISS),
        (ENDED, Place.QUEUED, Reaction.END),
        (ENDED, Place.PENDING, Reaction.END),
        (ENDED, Place.HANDED, Reaction.END),
        (ENDED, Place.HERE, Reaction.END),
        (ENDED, Place.ELSEWHERE, Reaction.DISMISS),
        (ENDED, Place.ABSENT, Reaction.END),
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
