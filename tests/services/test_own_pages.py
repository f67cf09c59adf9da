"""What a page of another site has a browser send changes nothing."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from penstock.services.api.asgi import application


@pytest.mark.parametrize(
    ("method", "origin", "status"),
    [
        ("POST", None, 200),
        ("POST", "http://127.0.0.1:8888", 200),
        ("POST", "http://127.0.0.1:9999", 403),
        ("POST", "https://evil.example", 403),
        ("DELETE", "https://evil.example", 403),
        ("POST", "null", 403),
        ("GET", "https://evil.example", 200),
    ],
)
def test_only_pages_of_our_own_change_anything(
    method: str, origin: str | None, status: int
) -> None:
    async def answer(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("done")

    app = application([Route("/task", answer, methods=["GET", "POST", "DELETE"])])
    headers = {} if origin is None else {"Origin": origin}

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8888"
        ) as client:
            return await client.request(method, "/task", headers=headers)

    answered = asyncio.run(ask())
    assert answered.status_code == status
    if status == 403:
        assert origin is not None
        assert origin in answered.json()["error"]
