"""Debian's Chromium for tests, which `scripts/setup browser` installs, and a tab of it.

Its shell without windows is preferred: the same engine, and a page costs half the processor time.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

# It runs as root in a container, and asks nobody for updates.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
TIMEOUT_MS = 120_000


@contextmanager
def started_browser() -> Iterator[Browser]:
    """A browser until the end of the block."""
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None:
        assert "CI" not in os.environ, "no Chromium found: run scripts/setup browser"
        pytest.skip("no Chromium found: run scripts/setup browser")
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=path, args=ARGUMENTS, timeout=TIMEOUT_MS
        )
        yield started
        started.close()


@dataclass(frozen=True)
class Refusal:
    """An answer with an error, which a browser reports as an error of the page.

    Attributes:
        method: Method of the request.
        status: HTTP status of the answer.
        path: Path of the request, without its parameters.
    """

    method: str
    status: int
    path: str


class Tab:
    """A tab of the browser, with what the browser reports and requests.

    Attributes:
        page: Its page.
        reports: All that the browser writes to its console.
        requests: Addresses of all requests.
        refusals: All answers with an error.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.reports: list[str] = []
        self.requests: list[str] = []
        self.refusals: list[Refusal] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.reports.append(str(error)))
        page.on("request", self._on_request)
        page.on("response", self._on_response)

    def note_texts(self, selector: str) -> None:
        """Keep all texts that an element has from now on, also those of a moment."""
        self.page.evaluate(
            """selector => {
                const shown = document.querySelector(selector);
                const note = () => document.body.dataset.noted += ` ${shown.textContent}`;
                new MutationObserver(note).observe(shown, {
                    childList: true, characterData: true, subtree: true
                });
            }""",
            selector,
        )

    def has_noted(self, text: str) -> None:
        """Wait until the element has had a text since `note_texts`."""
        expect(self.page.locator("body")).to_have_attribute("data-noted", re.compile(text))

    def _on_console(self, message: ConsoleMessage) -> None:
        self.reports.append(f"{message.type}: {message.text}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            path = urlsplit(response.url).path
            self.refusals.append(Refusal(response.request.method, response.status, path))

    def _on_request(self, request: Request) -> None:
        self.requests.append(request.url)
