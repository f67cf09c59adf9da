"""A broker for a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from broker_harness import RunningBroker

from penstock.broker.options import BrokerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def options(tmp_path: Path) -> BrokerOptions:
    return BrokerOptions(folder=str(tmp_path / "topics"), http_port=0)


@pytest.fixture
def broker(options: BrokerOptions) -> Iterator[RunningBroker]:
    with RunningBroker(options) as running:
        yield running
