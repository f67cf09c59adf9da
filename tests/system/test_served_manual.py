"""A running Penstock serves the manual on the port of its API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from manual.build import build_site

if TYPE_CHECKING:
    from penstock.testing.server import LocalPenstock

pytestmark = pytest.mark.system


def test_a_browser_that_opens_the_path_gets_the_front_page(shared_penstock: LocalPenstock) -> None:
    front = (build_site() / "index.html").read_bytes()
    answer = httpx.get(f"{shared_penstock.api_url}/docs", follow_redirects=True)
    assert answer.status_code == 200
    assert answer.url.path == "/docs/"
    assert answer.content == front
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")


def test_a_name_that_a_page_of_another_site_could_have_is_refused(
    shared_penstock: LocalPenstock,
) -> None:
    answer = httpx.get(f"{shared_penstock.api_url}/docs/", headers={"Host": "example.com"})
    assert answer.status_code == 403
