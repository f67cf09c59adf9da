"""The manual in a browser, as the router serves it: under its policy, with search, light and dark.

The browser is Debian's Chromium, which `scripts/setup browser` installs.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, expect

from manual.build import site_files
from penstock.services.api.asgi import application
from penstock.services.api.static_pages import ManualRoutes
from penstock.services.http_server import HttpServer
from tests.harness.access_kit import with_token
from tests.kits.browser_kit import TIMEOUT_MS, Tab, started_browser

SEARCH = "input.md-search__input"
RESULT = ".md-search-result__link"
PAGE_OF_RESULTS = ".md-search-result__item"
# What readers searched for, and the page that they needed among the first ones.
FIRST_PAGES = 3
TASKS = {
    "late data": "howto/late-events.html",
    "delete rows": "howto/replace-a-day.html",
    "task is stuck": "howto/find-a-slow-task.html",
    "task hangs": "howto/find-a-slow-task.html",
    "export to polars": "howto/read-with-other-engines.html",
    "own processor": "howto/write-a-processor.html",
    "custom processor": "howto/write-a-processor.html",
    "dead-letter": "howto/find-missing-rows.html",
    "semicolon": "howto/load-files.html",
    "rotate a password": "howto/keep-secrets.html",
    "row filter": "concepts/row-filters.html",
}


@pytest.fixture(scope="module")
def server(site: Path) -> Iterator[str]:
    """The address of the manual."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = HttpServer(
            application(ManualRoutes(site).routes(), access=with_token("word")), listener
        )
        running.start()
        yield f"http://127.0.0.1:{running.port}/docs/"
        running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


class Visit(Tab):
    """A tab with a page of the manual."""

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
    context.set_default_timeout(TIMEOUT_MS)
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
        visit.page.evaluate("new Promise((idle) => requestIdleCallback(idle))")
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


def test_the_search_finds_the_page_of_a_task_first(server: str, visit: Visit) -> None:
    found = {}
    visit.open(f"{server}?{urlencode({'q': 'topic'})}")
    field, result = visit.page.locator(SEARCH), visit.page.locator(RESULT)
    for text in TASKS:
        # In the same page: its index is made once.
        result.first.wait_for()
        field.fill("")
        field.press("Backspace")  # the theme waits for keys
        expect(result).to_have_count(0)
        field.fill(text)
        field.press("End")
        result.first.wait_for()
        links = visit.page.locator(f"{PAGE_OF_RESULTS} > {RESULT}")
        addresses = links.evaluate_all("links => links.map(link => link.pathname)")
        pages = dict.fromkeys(one.partition("/docs/")[2] for one in addresses)
        found[text] = list(pages)[:FIRST_PAGES]
    assert {text: pages for text, pages in found.items() if TASKS[text] not in pages} == {}


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
    visit.note_texts(".md-dialog")  # which shows it for two seconds
    block.hover()
    block.locator("button").first.click()
    visit.has_noted("Copied to clipboard")
    copied = visit.page.evaluate("navigator.clipboard.readText()")
    shown = block.locator("code").inner_text().splitlines()
    commands = [line.removeprefix("$ ") for line in shown if line.startswith("$ ")]
    assert [line for line in copied.splitlines() if line] == commands
    assert visit.reports == []


COMPATIBILITY = "reference/nsq-compatibility.html"
STATUSES = """
    () => [...document.querySelectorAll("article table")].flatMap((table) => {
        const heads = [...table.querySelectorAll("th")].map((cell) => cell.innerText);
        const rows = [...table.querySelectorAll("tbody tr")].filter((row) => row.checkVisibility());
        return heads.at(-1) === "test"
            ? rows.map((row) => row.cells[heads.indexOf("status")].innerText) : [];
    })
"""


def test_tables_of_compatibility_are_filtered_with_the_keyboard(server: str, visit: Visit) -> None:
    visit.open(server + COMPATIBILITY)
    everything = visit.page.evaluate(STATUSES)
    count = visit.page.locator("#status-filter output")
    expect(count).to_have_text(f"{len(everything)} of {len(everything)} rows")
    box = visit.page.get_by_role("checkbox", name="works")
    box.focus()
    # The boxes are in the order of the page: works, differs, no effect, absent.
    for _ in range(3):
        visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("Space")
    absent = everything.count("absent")
    expect(count).to_have_text(f"{absent} of {len(everything)} rows")
    assert visit.page.evaluate(STATUSES) == ["absent"] * absent
    expect(visit.page.get_by_text("No row of this table matches.").first).to_be_visible()
    visit.page.keyboard.press("Shift+Tab")
    visit.page.keyboard.press("Shift+Tab")
    visit.page.keyboard.press("Space")
    assert set(visit.page.evaluate(STATUSES)) == {"absent", "differs"}
    visit.page.get_by_label("with the words").press_sequentially("E_BAD_MESSAGE mpub")
    expect(count).to_have_text(f"1 of {len(everything)} rows")
    assert visit.page.evaluate(STATUSES) == ["differs"]
    assert visit.reports == []


def test_tables_of_compatibility_are_filtered_where_pages_are_opened_as_files(
    site: Path, visit: Visit
) -> None:
    visit.open((site / COMPATIBILITY).as_uri())
    visit.page.get_by_role("checkbox", name="no effect").check()
    assert set(visit.page.evaluate(STATUSES)) == {"no effect"}
    assert visit.reports == []


def test_without_javascript_a_page_of_compatibility_shows_everything(
    server: str, site: Path, browser: Browser
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(server + COMPATIBILITY)
    rows = page.locator("article tbody tr")
    assert (
        rows.count()
        == (site / COMPATIBILITY).read_text().count("<tr>")
        - page.locator("article thead tr").count()
    )
    assert all(row.is_visible() for row in rows.all())
    assert page.locator("#status-filter *").count() == 0
    context.close()


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
