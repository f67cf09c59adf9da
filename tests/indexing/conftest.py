"""Fixtures of the tests of indexing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.metadata_kit import share_compiled_statements
from tests.indexing.batch_kit import BatchWorld
from tests.indexing.simulation_kit import Simulation

share_compiled_statements()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Simulation]]:
    made: list[Simulation] = []

    def build(tuning: dict[str, Any] | None = None, **io: Any) -> Simulation:
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
