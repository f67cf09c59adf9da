"""Fixtures of the tests of real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import serving

from penstock.services.demo.server import DemoServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DemoServer]:
    """Serve the folder `data` of the test, with little memory for Spark."""
    variables = {"PENSTOCK_QUERY_MEMORY": "512m", "PENSTOCK_SPARK_MEMORY": "1g"}
    with serving(tmp_path / "data", variables) as made:
        yield made
