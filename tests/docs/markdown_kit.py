"""Read the fenced blocks and the links of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PROJECT = re.compile(r"https://github\.com/penstock/penstock/(?:blob|tree)/main/")
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
    """(path, anchor) of each link into the project; absolute ones are to files of main."""
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", text, re.MULTILINE):
        place = PROJECT.sub(f"{ROOT}/", target[0] or target[1])
        if "://" not in place and not place.startswith("mailto:"):
            path, _, anchor = place.partition("#")
            yield path, anchor


def anchors(page: Path) -> set[str]:
    """The anchors that headings make, as code hosts derive them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
