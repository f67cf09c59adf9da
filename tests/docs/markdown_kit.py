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
    """A fenced block.

    Attributes:
        page: The page that contains it.
        line: Number of its first line, which has the backticks.
        language: First word behind the backticks.
        text: Lines within it, without the indentation of the fence.
        title: Name of the file that the block shows, or "".
        not_run: Reason why its commands are not run, or "".
        run_by: Name of the test that runs them instead of the one of pages, or "".
    """

    page: Path
    line: int
    language: str
    text: str
    title: str = ""
    not_run: str = ""
    run_by: str = ""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def fences(page: Path) -> Iterator[Fence]:
    information: str | None = None
    remark = before = indentation = ""
    start = 0
    lines: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            if information is None:
                indentation, _, information = line.partition("```")
                start, lines = number, []
                remark = before
            else:
                language = information.split()[0] if information.strip() else ""
                title = re.search(r'\btitle="([^"]+)"', information)
                text = "\n".join(lines)
                name = title[1] if title else ""
                yield Fence(
                    *(page, start, language, text, name),
                    not_run=_remark("not run", remark),
                    run_by=_remark("run by", remark),
                )
                information = None
        elif information is not None:
            lines.append(line.removeprefix(indentation))
        if line.strip():
            before = line


def _remark(kind: str, line: str) -> str:
    """Return the text of a remark of this kind, "" if the line is not one."""
    found = re.fullmatch(rf"\s*<!-- {kind}: (.+) -->", line)
    return found[1] if found else ""


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
