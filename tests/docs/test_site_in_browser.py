"""The manual in a browser, as the router serves it: under its policy, with search, light and dark.

The browser is Debian's Chromium, which `scripts/setup browser` installs.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from manual.build import site_files
from penstock.services.api.asgi import application
from penstock.services.api.manual import ManualRoutes
from penstock.services.http_server import HttpServer

# It runs as root in a container, and asks nobody for updates.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
SEARCH = "input.md-search__input"
RESULT = ".md-search-result__link"


@pytest.fixture(scope="module")
def server(site: Path) -> Iterator[str]:
    """The address of the manual."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = HttpServer(application(ManualRoutes(site).routes(), token="word"), listener)
        running.start()
        yield f"http://127.0.0.1:{running.port}/docs/"
        running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        assert "CI" not in os.environ, "no Chromium found: run scripts/setup browser"
        pytest.skip("no Chromium found: run scripts/setup browser")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


class Visit:
    """A tab of the browser, with what the browser reports and requests."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.reports: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.reports.append(str(error)))
        page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        self.reports.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Request) -> None:
        self.requests.append(request.url)

    def open(self, address: str) -> None:
        answer = self.page.goto(address, wait_until="load")
        assert answer is None or answer.ok
        # The theme's script sets the class.
        expect(self.page.locator("html.js")).to_have_count(1)

    def search(self, text: str) -> None:
        # Key by key, as the theme waits for keys.
        self.page.locator(SEARCH).press_sequentially(text)
        self.page.locator(RESULT).first.wait_for()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    context = browser.new_context()
    context.set_default_timeout(60_000)
    yield Visit(context.new_page())
    context.close()


def sample(site: Path) -> list[str]:
    """The largest page and the largest of each folder."""
    largest: dict[str, tuple[int, str]] = {}
    for path in site_files(site):
        if path.suffix == ".html":
            name = path.relative_to(site)
            entry = (path.stat().st_size, str(name))
            largest[str(name.parent)] = max(largest.get(str(name.parent), entry), entry)
    return sorted(name for _, name in largest.values())


def test_pages_run_under_the_policy_and_load_nothing_from_elsewhere(
    server: str, site: Path, visit: Visit
) -> None:
    names = ["", *sample(site)]
    assert len(names) > 3
    for name in names:
        visit.open(server + name)
        visit.page.wait_for_load_state("networkidle")
        assert visit.reports == [], name
    assert len(visit.requests) > len(names)
    assert [url for url in visit.requests if not url.startswith(server)] == []


def test_what_the_policy_blocks_is_reported(server: str, visit: Visit) -> None:
    """The test above would not see a violation if the browser did not report it here."""
    visit.open(server)
    for change in (
        """document.body.insertAdjacentHTML('beforeend', '<p style="color: red">a</p>')""",
        """document.body.append(Object.assign(document.createElement('script'), {text: '1'}))""",
        """new Promise((done) => {
            const picture = new Image();
            picture.addEventListener('error', done);
            picture.src = 'https://example.com/a.png';
        })""",
    ):
        visit.reports.clear()
        visit.page.evaluate(change)
        assert any("Content Security Policy" in one for one in visit.reports), change


def test_the_search_finds_a_page(server: str, visit: Visit) -> None:
    visit.open(server)
    visit.search("topic partition")
    visit.page.locator(RESULT).first.click()
    visit.page.wait_for_url(lambda url: url.startswith(server) and ".html" in url)
    expect(visit.page.locator("article mark").first).to_be_visible()
    assert visit.reports == []


def test_the_search_works_where_pages_are_opened_as_files(site: Path, visit: Visit) -> None:
    visit.open((site / "index.html").as_uri())
    visit.search("topic partition")
    assert [url for url in visit.requests if not url.startswith("file:")] == []
    assert visit.reports == []


def test_the_button_of_a_block_copies_its_commands(server: str, site: Path, visit: Visit) -> None:
    prompt = '<span class="gp">'
    pages = (path for path in site_files(site) if path.suffix == ".html")
    name = next(path.relative_to(site) for path in pages if prompt in path.read_text())
    visit.open(server + str(name))
    visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    block = visit.page.locator(".highlight", has=visit.page.locator(".gp")).first
    block.hover()
    block.locator("button").first.click()
    expect(visit.page.get_by_text("Copied to clipboard")).to_be_visible()
    copied = visit.page.evaluate("navigator.clipboard.readText()")
    shown = block.locator("code").inner_text().splitlines()
    commands = [line.removeprefix("$ ") for line in shown if line.startswith("$ ")]
    assert [line for line in copied.splitlines() if line] == commands
    assert visit.reports == []


def test_pictures_follow_the_colours(server: str, site: Path, visit: Visit) -> None:
    pages = [path for path in site_files(site) if path.suffix == ".html"]
    drawn = [path for path in pages if 'class="picture"' in path.read_text()]
    if not drawn:
        pytest.skip("no page has a picture yet")
    found = {}
    for scheme in ("light", "dark"):
        visit.page.emulate_media(color_scheme=scheme)
        visit.open(server + str(drawn[0].relative_to(site)))
        expect(visit.page.locator(".picture").first).to_be_visible()
        fill = "e => getComputedStyle(e).fill"
        found[scheme] = visit.page.locator(".picture .p-ink").first.evaluate(fill)
    assert found["light"] != found["dark"]
    assert visit.reports == []


def test_the_colours_follow_the_system_until_the_reader_chooses(server: str, visit: Visit) -> None:
    def scheme_is(name: str) -> None:
        expect(visit.page.locator("body")).to_have_attribute("data-md-color-scheme", name)

    visit.page.emulate_media(color_scheme="dark")
    visit.open(server)
    scheme_is("slate")
    visit.page.emulate_media(color_scheme="light")
    scheme_is("default")
    for choice, scheme in (("Switch to light", "default"), ("Switch to dark", "slate")):
        visit.page.locator(f'label[title="{choice}"]').click()
        scheme_is(scheme)
    visit.page.reload()
    scheme_is("slate")
    assert visit.reports == []
