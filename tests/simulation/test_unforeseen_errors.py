"""The control plane under exceptions that no part of it expects, at any call of any port.

A port raises a `MemoryError`, `OSError`, `RuntimeError` or `KeyboardInterrupt`, before or after it
has done its work, or a lane has no thread. The part that meets it ends its process, which starts
anew, or reports a failure. Afterwards nothing may be lost, doubled, stuck or left.
"""

from __future__ import annotations

import pytest

from tests.harness.cluster_simulation.chance import FAULTS, Faults
from tests.harness.cluster_simulation.run import Outcome, require_seed

ERRORS = frozenset({"unforeseen error", "no thread"})
SAMPLE = (1, 2)


def unforeseen(number: int) -> Outcome:
    """Run a world whose only faults are such errors; raise `Failed` if a promise is broken."""
    faults = Faults(
        without=frozenset(FAULTS) - ERRORS, scale=4.0, always=frozenset({"unforeseen errors"})
    )
    return require_seed(number, faults)


def unforeseen_among_others(number: int) -> Outcome:
    """Run a world with all kinds of faults, so that errors come in pairs with others."""
    return require_seed(number, Faults(always=frozenset({"unforeseen errors"})))


@pytest.mark.parametrize("number", SAMPLE)
def test_errors_that_nobody_expects_lose_and_double_nothing(number: int) -> None:
    unforeseen(number)


@pytest.mark.parametrize("number", SAMPLE)
def test_errors_that_nobody_expects_beside_others_lose_and_double_nothing(number: int) -> None:
    unforeseen_among_others(number + 101)
