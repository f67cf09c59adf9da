"""The router serves the manual at /docs: its headers, its files, and nothing beside them."""

from __future__ import annotations

import gzip
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
from starlette.applications import Starlette
from starlette.types import Message

from penstock.services.api.asgi import application
from penstock.services.api.static_pages import ManualRoutes
from tests.harness.access_kit import with_token

pytestmark = pytest.mark.anyio
PAGE = "<p>" + "events in, answers out " * 100
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; connect-src 'self'; "
    "worker-src 'self'; manifest-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "howto").mkdir(parents=True)
    (folder / "index.html").write_text("<p>front")
    (folder / "howto" / "tune.html").write_text(PAGE)
    (folder / ".inputs").write_text("secret")
    (folder / "run.py").write_text("secret")
    (tmp_path / "beside.html").write_text("secret")
    return folder


@pytest.fixture
def app(site: Path) -> Starlette:
    return application(ManualRoutes(site).routes(), access=with_token("word"))


async def ask(app: Starlette, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        return await client.request(method, path, headers={"accept-encoding": ""} | headers)


async def test_pages_come_with_their_policy_and_without_a_token(app: Starlette) -> None:
    answer = await ask(app, "/docs/howto/tune.html")
    assert answer.status_code == 200
    assert answer.text == PAGE
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


async def test_the_path_without_a_slash_leads_to_the_front_page(app: Starlette) -> None:
    answer = await ask(app, "/docs")
    assert answer.status_code == 308
    # Relative, as a proxy may serve the port below a path.
    assert answer.headers["location"] == "docs/"
    assert (await ask(app, "/docs/")).text == "<p>front"


async def test_a_page_that_has_not_changed_is_not_sent_again(app: Starlette, site: Path) -> None:
    first = await ask(app, "/docs/howto/tune.html")
    tag = first.headers["etag"]
    for given in (tag, f'"other", W/{tag}'):
        again = await ask(app, "/docs/howto/tune.html", if_none_match=given)
        assert again.status_code == 304
        assert again.content == b""
        assert again.headers["etag"] == tag
    page = site / "howto" / "tune.html"
    page.write_text(PAGE.replace("out", "OUT"))
    changed = await ask(app, "/docs/howto/tune.html", if_none_match=tag)
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


async def test_pages_are_packed_for_clients_that_take_gzip(app: Starlette) -> None:
    plain = await ask(app, "/docs/howto/tune.html")
    packed = await ask(app, "/docs/howto/tune.html", accept_encoding="br, gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.text == PAGE
    assert int(packed.headers["content-length"]) < len(PAGE) / 2
    assert packed.headers["etag"] != plain.headers["etag"]
    assert packed.headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in plain.headers
    refused = await ask(app, "/docs/howto/tune.html", accept_encoding="gzip;q=0")
    assert "content-encoding" not in refused.headers
    head = await ask(app, "/docs/howto/tune.html", "HEAD", accept_encoding="gzip")
    assert head.headers == packed.headers
    assert len(gzip.compress(PAGE.encode(), 5, mtime=0)) == int(head.headers["content-length"])


@pytest.mark.parametrize(
    "path",
    [
        "../beside.html",
        "..%2fbeside.html",
        "%2e%2e/beside.html",
        "howto/../../beside.html",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        ".inputs",
        "run.py",
        "howto",
        "howto/",
        "howto//tune.html",
        "tune.html%00",
        "missing.html",
        f"{'x' * 5000}.html",
    ],
)
async def test_nothing_but_files_of_the_site_is_served(app: Starlette, path: str) -> None:
    # Without a client, which would resolve the dots.
    raw = f"/docs/{path}".encode()
    scope = {
        "type": "http",
        "method": "GET",
        "path": unquote(raw.decode()),
        "raw_path": raw,
        "query_string": b"",
        "headers": [],
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    assert sent[0]["status"] == 404
    assert b"notFound" in sent[1]["body"]
    assert b"secret" not in sent[1]["body"]


async def test_only_reading_is_allowed(app: Starlette) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert (await ask(app, "/docs/index.html", method)).status_code == 405
    head = await ask(app, "/docs/index.html", "HEAD")
    assert head.status_code == 200
    assert int(head.headers["content-length"]) == len("<p>front")


async def test_other_paths_still_need_the_token(app: Starlette) -> None:
    for path in ("/docsx", "/status", "/doc"):
        assert (await ask(app, path)).status_code == 401


async def test_a_checkout_without_the_manual_says_how_to_build_it(tmp_path: Path) -> None:
    app = application(ManualRoutes(tmp_path / "site").routes(), access=with_token(None))
    answer = await ask(app, "/docs/")
    assert answer.status_code == 404
    assert "make docs" in answer.json()["error"]
