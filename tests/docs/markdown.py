"""Read the fenced blocks and the links of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Fence:
    """A fenced block: where it stands, its language, its text."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def fences(page: Path) -> Iterator[Fence]:
    language: str | None = None
    start = 0
    lines: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            if language is None:
                language, start, lines = line[3:].strip(), number, []
            else:
                yield Fence(page, start, language, "\n".join(lines))
                language = None
        elif language is not None:
            lines.append(line)


def all_fences(language: str) -> list[Fence]:
    return [fence for page in PAGES for fence in fences(page) if fence.language == language]


def links(page: Path) -> Iterator[tuple[str, str]]:
    """(path, anchor) of each relative link."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, anchor = target.partition("#")
            yield path, anchor


def anchors(page: Path) -> set[str]:
    """The anchors that headings make, as code hosts derive them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
