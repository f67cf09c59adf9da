"""The console in a tab of the browser."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import httpx
from playwright.sync_api import Browser, BrowserContext, Route, expect

from tests.kits.browser_kit import TIMEOUT_MS, Refusal, Tab

AXE = Path(__file__).parents[2] / "console" / "node_modules" / "axe-core" / "axe.min.js"
# A name that markup, a URL and SQL would each read in another way.
HOSTILE = "<img src=x onerror=alert(1)>"


_REFUSED = "error: Failed to load resource: the server responded with a status of "


class Expected(NamedTuple):
    """Answers with an error that a page provokes in ordinary use.

    Attributes:
        method: Method of the request.
        statuses: Their statuses.
        path: Pattern of the path.
        reason: Why no better answer exists.
    """

    method: str
    statuses: Collection[int]
    path: str
    reason: str


_ACTIONS = (
    "/druid/(indexer|coordinator)/v1/.*",
    "/druid/v2/sql/.*",
    "/flow/?.*",
    "/penstock/v1/(broker|flow|lookups|supervisors|uploads)(/.*)?",
)
_REFUSED_ACTIONS = {400, 403, 404, 409}
# A browser reports each of these as an error of the page. Requests that a page sends by itself are
# not among them.
EXCEPTIONS = (
    Expected("POST", {400}, "/druid/v2/sql", "a wrong statement, as Druid answers it"),
    Expected("POST", {500}, "/druid/v2/sql", "somebody cancelled the statement, as in Druid"),
    Expected("GET", {400, 404}, "/penstock/v1/(trace|flow)/.*", "a user names no event"),
    Expected("POST", {400, 404}, "/penstock/v1/trace/row", "a user names no row"),
    Expected("GET", {400, 404}, "/penstock/v1/broker/peek", "a user writes no JSON path or offset"),
    Expected("GET", {404}, "/flow/queue/content", "the FlowFile was taken meanwhile"),
    Expected("POST", {404}, "/penstock/v1/sample", "the input was deleted meanwhile"),
    Expected("GET", {401}, "/penstock/v1/me", "nobody is logged in, which a page learns only so"),
    Expected("GET", {404}, "/docs/?", "an installation without a manual"),
    *(
        Expected(method, _REFUSED_ACTIONS, path, "the server refuses what a button asks for")
        for method in ("POST", "PUT", "DELETE")
        for path in _ACTIONS
    ),
)


class Console(Tab):
    """A tab with the console.

    Args:
        browser: The browser.
        address: Address of the console.
        beside: A tab that shares what the browser keeps; None: nothing is kept yet.
        options: Those of a new context of the browser.
    """

    def __init__(
        self, browser: Browser, address: str, beside: Console | None = None, **options: object
    ) -> None:
        self.context: BrowserContext = (
            beside.context if beside else browser.new_context(**options)  # type: ignore[arg-type]
        )
        self.context.set_default_timeout(TIMEOUT_MS)
        super().__init__(self.context.new_page())
        self.address = address
        self._expected = list(EXCEPTIONS)

    def open(self, place: str) -> None:
        """Go to a page of the console; its parts are drawn, perhaps without answers."""
        self.page.goto(f"{self.address}/#/{place}")
        # Within a document, the browser tells the script of the new address after that.
        self.page.evaluate("() => new Promise(done => setTimeout(() => setTimeout(done)))")
        expect(self.page.locator("main")).to_be_visible()

    def shows(self, text: str) -> None:
        expect(self.page.locator("main").get_by_text(text).first).to_be_visible()

    def write(self, statement: str) -> None:
        """Write a statement in the editor, as a person would: key by key."""
        editor = self.page.get_by_label("statement", exact=True)
        editor.press("Control+A")
        editor.press("Delete")
        for number, line in enumerate(statement.splitlines()):
            if number:
                editor.press("Enter")
            editor.press_sequentially(line)
            editor.press("Escape")  # closes the completion, which the next line would accept

    def cut_stream(self) -> list[Route]:
        """End the first stream of events after an answer for each path, and hold later streams.

        Returns:
            The held requests, oldest first; the list grows.
        """
        held: list[Route] = []
        is_cut = False

        def answer(route: Route) -> None:
            nonlocal is_cut
            if is_cut:
                held.append(route)
                return
            is_cut = True
            events = []
            watched = parse_qs(urlsplit(route.request.url).query)["watch"]
            for number, path in enumerate(watched):
                found = httpx.get(self.address + path)
                event = {"watch": number, "status": found.status_code, "body": found.json()}
                events.append(f"data: {json.dumps(event)}\n\n")
            route.fulfill(body="".join(events), content_type="text/event-stream")

        self.page.route("**/penstock/v1/live?**", answer)
        return held

    def expect(self, method: str, status: int, path: str, reason: str) -> None:
        """Expect answers with an error that only this test provokes; `path` is a pattern."""
        self._expected.append(Expected(method, {status}, path, reason))

    def _is_expected(self, refusal: Refusal) -> bool:
        return any(
            one.method == refusal.method
            and refusal.status in one.statuses
            and re.fullmatch(one.path, refusal.path)
            for one in self._expected
        )

    def close(self) -> None:
        # A stream that the page opens again at this moment must not fail the test.
        self.page.unroute_all(behavior="ignoreErrors")
        self.context.close()
        refusals = [one for one in self.refusals if not self._is_expected(one)]
        assert refusals == [], refusals
        # Of all that it writes, these are the answers above; the page shows them in their places.
        reports = [one for one in self.reports if not one.startswith(_REFUSED)]
        assert reports == [], reports
        assert {url.partition("?")[0].split("/")[2] for url in self.requests} == {
            self.address.removeprefix("http://")
        }


def violations(console: Console) -> list[tuple[str, str]]:
    """Return the rules of accessibility that the page breaks, each with a place."""
    if not console.page.evaluate("'axe' in window"):
        console.page.add_script_tag(content=AXE.read_text())
    found = console.page.evaluate("axe.run().then(result => result.violations)")
    return [(one["id"], one["nodes"][0]["html"]) for one in found]
