"""Many tasks that lock their intervals before they start, in a cluster with two slots."""

from __future__ import annotations

import pytest

from tests.harness.cluster_simulation.chance import Faults
from tests.harness.cluster_simulation.cluster import Shape
from tests.harness.cluster_simulation.run import run_seed
from tests.harness.cluster_simulation.users import Wishes

TASK_LOCK_TIMEOUT_S = 300.0


QUIET = Faults(scale=0.0)


@pytest.mark.parametrize(
    ("seed", "concurrent", "faults"),
    [
        (1, False, QUIET),
        (4, True, QUIET),
        (3, False, Faults()),
        (8, True, Faults()),
    ],
    ids=["1-quiet", "4-concurrent-quiet", "3-faults", "8-concurrent-faults"],
)
def test_slots_and_locks_never_wait_for_each_other(
    seed: int, concurrent: bool, faults: Faults
) -> None:
    """Else `taskLockTimeout` would have to end it.

    With concurrent locks, what was appended under a REPLACE lock that was yielded once came twice.
    """
    wishes = Wishes(concurrent=concurrent, operators=False, every_s=0.4)
    outcome = run_seed(seed, faults, shape=Shape(1, 1, 2), wishes=wishes)
    assert outcome.violation == ""
    assert outcome.virtual_s < TASK_LOCK_TIMEOUT_S
