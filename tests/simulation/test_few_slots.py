"""Many tasks that lock their intervals before they start, in a cluster with two slots."""

from __future__ import annotations

import pytest

from penstock.testing.simulation.chance import Faults
from penstock.testing.simulation.cluster import Shape
from penstock.testing.simulation.run import run_seed
from penstock.testing.simulation.users import Wishes

TASK_LOCK_TIMEOUT_S = 300.0


@pytest.mark.parametrize("faults", [Faults(scale=0.0), Faults()], ids=["quiet", "faults"])
@pytest.mark.parametrize("seed", [1, 3])
def test_slots_and_locks_never_wait_for_each_other(seed, faults):
    """Else `taskLockTimeout` would have to end it."""
    wishes = Wishes(concurrent=False, operators=False, every_s=0.4)
    outcome = run_seed(seed, faults, shape=Shape(1, 1, 2), wishes=wishes)
    assert outcome.violation == ""
    assert outcome.virtual_s < TASK_LOCK_TIMEOUT_S
