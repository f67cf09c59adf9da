"""Fixtures of the tests of indexing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from batch_kit import BatchWorld
from metadata_kit import share_compiled_statements
from simulation_kit import Simulation

share_compiled_statements()


@pytest.fixture
def make(tmp_path):
    made: list[Simulation] = []

    def build(tuning=None, **io):
        sim = Simulation(tmp_path, 5, tuning, **io)
        made.append(sim)
        return sim

    yield build
    for sim in made:
        sim.metadata.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BatchWorld]:
    made = BatchWorld(tmp_path)
    yield made
    made.close()
