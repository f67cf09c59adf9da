"""Stories are told on both kinds of event loop."""

from __future__ import annotations

import pytest

from tests.client.fake_server_kit import LOOPS, use_loop


@pytest.fixture(params=sorted(LOOPS))
def either_loop(request: pytest.FixtureRequest) -> None:
    use_loop(request.param)
