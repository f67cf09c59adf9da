"""Seeds of the simulated control plane, and each that has failed once, under its name.

More seeds than here: ``make soak ARGS="simulation"``.
"""

from __future__ import annotations

import functools

import pytest

from tests.harness.cluster_simulation.chance import USER_ACTIONS, Faults
from tests.harness.cluster_simulation.run import Outcome, require_seed, run_seed

SEEDS = range(3)

# Kinds of faults and user actions that came later, without which a seed is what it was.
LATER = frozenset(
    {
        "engine slow",
        "publish late",
        "publish very late",
        "publish unheard",
        "leader's clock behind",
        "mixed locks",
        "marks amid work",
        "tasks together",
        "calm hosts",
        "agreement late",
        "deep storage full",
        "publish under way",
        "unused are deleted",
        "message windows",
        "leaders come and go",
        "minor compactions",
        "unforeseen errors",
    }
)

ONCE_FAILED = {
    "a task that was refused on a full disk left its folder; a fenced write ended the mailbox": 22,
    "a worker that was cut off when it was to tell everything was never asked for that again": 20,
    "clocks that stayed wrong hid the leader": 11,
    "tasks waited in all slots for locks of a task that waited for a slot": 59,
    "a replica that lagged behind its open sequence was told to end before that begins": 148,
    "a file seemed older than its task, whose time was of a clock ahead, and was deleted": 268,
    "a file of another start had the name of one that was published": 278,
    "a task stood behind those who waited for it, in the line for locks that it had": 137,
    "a compaction brought back rows that were taken out of view while it ran": 652,
    "a replica that nobody could ask showed rows of its successor again": 73,
}

ONCE_FAILED_WITH_USER_ACTIONS = {
    "a task that nobody knew was stored outlived its supervisor, and was never told its end": 660,
}


ONCE_FAILED_WITH_ALL = {
    "rows between locks on segments that were revoked and new ones were taken for appended": 40135,
}


@functools.cache
def first_run(seed: int) -> Outcome:
    return require_seed(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_fails_every_event_is_published_once_and_nothing_is_left(seed: int) -> None:
    first_run(seed)


@pytest.mark.parametrize("seed", ONCE_FAILED.values(), ids=ONCE_FAILED.keys())
def test_what_failed_once(seed: int) -> None:
    # Users had none of these actions when these failed.
    require_seed(seed, Faults(without=LATER.union(USER_ACTIONS)))


@pytest.mark.parametrize(
    "seed", ONCE_FAILED_WITH_USER_ACTIONS.values(), ids=ONCE_FAILED_WITH_USER_ACTIONS.keys()
)
def test_what_failed_once_with_user_actions(seed: int) -> None:
    require_seed(seed, Faults(without=LATER))


@pytest.mark.parametrize("seed", ONCE_FAILED_WITH_ALL.values(), ids=ONCE_FAILED_WITH_ALL.keys())
def test_what_failed_once_with_all_that_there_is(seed: int) -> None:
    require_seed(seed, Faults(without=frozenset({"unforeseen errors"})))


def test_without_faults_a_seed_is_quiet_and_the_same_each_time() -> None:
    quiet = Faults(scale=0.0)
    one, other = run_seed(5, quiet), run_seed(5, quiet)
    assert not one.violation
    assert one.faults == {}
    assert (one.commits, one.steps, one.story) == (other.commits, other.steps, other.story)


def test_with_faults_a_seed_is_the_same_each_time() -> None:
    one, other = first_run(1), run_seed(1)
    assert one.faults
    assert (one.commits, one.steps, one.faults) == (other.commits, other.steps, other.faults)
    assert one.story == other.story
