"""Makes the modules beside the tests importable; stories are told on both kinds of event loop."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_server_kit import LOOPS, use_loop


@pytest.fixture(params=sorted(LOOPS))
def either_loop(request: pytest.FixtureRequest) -> None:
    use_loop(request.param)
