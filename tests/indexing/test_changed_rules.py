"""Rules that were changed are applied at the next look; those that were not cost no more looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.errors import Unavailable
from penstock.indexing.overlord.duties.retention import ChangedRules, RetentionDuty
from tests.indexing.batch_kit import world_of

ROWS = [(1, "x", 1), (1, "y", 2), (2, "z", 3)]


class Counted(RetentionDuty):
    """Counts its rounds, and fails when told."""

    rounds = 0
    fails = False

    def run(self) -> None:
        self.rounds += 1
        if self.fails:
            raise Unavailable("the metadata does not answer")
        super().run()


def test_changed_rules_are_applied_once(tmp_path: Path) -> None:
    with world_of(tmp_path, ROWS) as world:
        retention = Counted(world.store, world.clock)
        duty = ChangedRules(world.store, retention)
        duty.run()
        duty.run()
        assert (world.rows(), retention.rounds) == (ROWS, 1)
        world.store.rules.put("_default", [{"type": "dropForever"}])
        duty.run()
        duty.run()
        assert (world.rows(), retention.rounds) == ([], 2)
        world.store.rules.put("_default", [])
        duty.run()
        assert retention.rounds == 3


def test_rules_that_could_not_be_applied_are_at_the_next_look(tmp_path: Path) -> None:
    with world_of(tmp_path, ROWS) as world:
        retention = Counted(world.store, world.clock)
        duty = ChangedRules(world.store, retention)
        duty.run()
        world.store.rules.put("d", [{"type": "dropForever"}])
        retention.fails = True
        with pytest.raises(Unavailable):
            duty.run()
        retention.fails = False
        duty.run()
        assert world.rows() == []
