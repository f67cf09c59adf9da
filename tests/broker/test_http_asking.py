"""Questions that the broker asks: what can be no server's address is an error like any other."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from penstock.broker.http.asking import HttpAsker
from penstock.core.errors import PenstockError


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1/auth",
        "http://127.0.0.1:99999/auth",
        f"http://{'x' * 64}:1/auth",
        "http://a..b:1/auth",
        "http://:1/auth",
        "ftp://127.0.0.1:1/auth",
    ],
)
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_address_that_can_be_none_is_an_error_of_ours(url: str, run: object) -> None:
    async def ask() -> None:
        asker = HttpAsker(1.0, 1.0, 1_000)
        with pytest.raises(PenstockError):
            await asker.get(url, {"secret": "s"})
        with pytest.raises(PenstockError):
            await asker.post(url, b"{}")

    assert callable(run)
    run(ask())
