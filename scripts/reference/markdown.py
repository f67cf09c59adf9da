"""Parts of Markdown that the generated pages share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml


def head(title: str, source: str, about: str) -> str:
    """Return the beginning of a generated page.

    Args:
        title: The heading.
        source: The source of the page, as a noun phrase.
        about: Two or three sentences for the reader.
    """
    return (
        f"# {title}\n\n"
        f"<!-- Generated from {source} by `make reference`: do not edit. -->\n\n{about.strip()}"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, with an empty line before it; nothing if it has no rows."""
    lines = [f"| {' | '.join(cell(one) for one in row)} |" for row in rows]
    if lines:
        yield ""
        yield f"| {' | '.join(heads)} |"
        yield "|" + "---|" * len(heads)
        yield from lines


def cell(text: str) -> str:
    """Return a text as the cell of a table: in one line, with its bars escaped.

    Code with a bar is not marked as code: code hosts need the bar escaped there, and MkDocs would
    show the backslash.
    """
    plain = re.sub(r"`([^`]*\|[^`]*)`", r"\1", " ".join(text.split()))
    return plain.replace("|", "\\|")


def fence(language: str, text: str) -> Iterator[str]:
    """Yield the lines of a fenced block, with an empty line before it."""
    yield from ("", f"```{language}", *text.strip("\n").splitlines(), "```")


def sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop; code at its beginning stays as it is."""
    text = text.strip()
    if text and not text.endswith((".", "!", "?", ":", "…")):
        text += "."
    # Names of programs and values stay as they are.
    is_name = text.startswith(("http", "nsq", "iso", "`"))
    return text if is_name else text[:1].upper() + text[1:]


def slug(title: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def written(name: str) -> list[str]:
    """Return the lines of a fixed part of a page, from the folder `texts`."""
    file = Path(__file__).parent / "texts" / f"{name}.md"
    return file.read_text(encoding="utf-8").splitlines()


@cache
def data(name: str) -> Any:
    """Return the content of a file in the folder `data`."""
    file = Path(__file__).parent / "data" / f"{name}.yaml"
    return yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)
