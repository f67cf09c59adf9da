"""Make pages work under a Content-Security-Policy without inline scripts and styles.

The router serves the site with `script-src 'self'` and `style-src 'self'`
(`services.api.static_pages`). The theme has a few inline scripts, and pictures have styles:
`InlineParts` moves them into files that are named by their content. `violations` finds what such a
policy would still block, and addresses outside of the site that a browser would load.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

_INLINE: Final = re.compile(
    r"<(?P<tag>script|style)(?P<attributes>[^>]*)>(?P<text>.*?)</(?P=tag)>", re.DOTALL
)
_FOLDER: Final = "assets/inline"
# Data is not run, so that the policy does not concern it.
_DATA: Final = re.compile(r"""\btype=["']?application/(?:json|ld\+json)""")
_LOADING: Final = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "audio": "src",
    "video": "src",
    "embed": "src",
    "object": "data",
    "image": "href",
    "use": "href",
}
_FOREIGN: Final = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_IN_CSS: Final = re.compile(r"""(?:@import\s+|url\(\s*)["']?(?P<address>[^"')]+)""")


class InlineParts:
    """The scripts and styles that were moved out of pages, by the path of their file."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def moved(self, html: str, to_top: str) -> str:
        """Return a page that names files in place of its inline scripts and styles.

        Args:
            html: The page.
            to_top: Relative address of the top of the site, such as `../`.
        """

        def file_of(found: re.Match[str]) -> str:
            attributes, text = found["attributes"], found["text"]
            if re.search(r"\bsrc=", attributes) or _DATA.search(attributes):
                return found[0]
            is_script = found["tag"] == "script"
            name = hashlib.sha256(text.encode()).hexdigest()[:16]
            path = f"{_FOLDER}/{name}.{'js' if is_script else 'css'}"
            self._texts[path] = text
            if is_script:
                return f'<script{attributes} src="{to_top}{path}"></script>'
            return f'<link rel="stylesheet" href="{to_top}{path}">'

        return _INLINE.sub(file_of, html)

    def write(self, site: Path) -> None:
        """Write the files into a site."""
        for path, text in self._texts.items():
            file = site / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def violations(html: str) -> list[str]:
    """Return what the policy would block in a page, and what it would load from elsewhere."""
    finder = _Finder()
    finder.feed(html)
    finder.close()
    return finder.found


def foreign_addresses_of_css(css: str) -> Iterator[str]:
    """Yield the addresses outside of the site that a stylesheet would load."""
    for found in _IN_CSS.finditer(css):
        if _FOREIGN.match(found["address"]):
            yield found["address"]


class _Finder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        place = f"<{tag}> in line {self.getpos()[0]} of the page"
        if "style" in values:
            self.found.append(f"{place} has a style attribute: use a class")
        self.found += [
            f"{place} has the inline handler {name}: use a script in a file"
            for name in values
            if re.fullmatch(r"on[a-z]+", name)
        ]
        if tag == "style" or (
            tag == "script"
            and "src" not in values
            and not _DATA.search(f"type={values.get('type')}")
        ):
            self.found.append(f"{place} is inline: put it into a file")
        if re.match(r"\s*javascript:", values.get("href", ""), re.IGNORECASE):
            self.found.append(f"{place} has a script as its address: use a script in a file")
        if tag == "img" and not values.get("alt", "").strip():
            self.found.append(f"{place} has no alternative text: describe the picture")
        address = values.get(_LOADING.get(tag, ""), "")
        if _FOREIGN.match(address) and not (tag == "link" and values.get("rel") == "canonical"):
            self.found.append(f"{place} loads {address}: put the file into docs")

    handle_startendtag = handle_starttag
