"""Parser of docstrings in Google style, for pages that are derived from them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_SECTIONS: Final = ("Attributes", "Args", "Returns", "Yields", "Raises")
_HEAD: Final = re.compile(rf"^({'|'.join(_SECTIONS)}):$", re.MULTILINE)
_ENTRY: Final = re.compile(r"^ {4}(\w[\w.]*)(?: \([^)]*\))?: ", re.MULTILINE)


@dataclass(frozen=True)
class Docstring:
    """A docstring in parts; double backticks are single ones, as Markdown needs them.

    Attributes:
        summary: Its first paragraph, in one line.
        details: The paragraphs after it.
        entries: The texts of each section with names, by section and name.
        returns: The text of `Returns` or `Yields`.
    """

    summary: str
    details: str = ""
    entries: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    returns: str = ""


def parse(documented: object) -> Docstring:
    """Return the docstring of a class or function."""
    text = (inspect.getdoc(documented) or "").replace("``", "`")
    first, *rest = _HEAD.split(text)
    summary, _, details = first.strip().partition("\n\n")
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    returns = sections.pop("Returns", sections.pop("Yields", ""))
    return Docstring(
        " ".join(summary.split()),
        details.strip(),
        {name: _entries(body) for name, body in sections.items()},
        " ".join(returns.split()),
    )


def _entries(body: str) -> dict[str, str]:
    _, *parts = _ENTRY.split(body.strip("\n"))
    return {
        name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)
    }
