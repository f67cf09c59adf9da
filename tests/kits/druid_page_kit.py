"""Reads the tables of docs/druid-compatibility.md: a line for each endpoint, field and kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "druid-compatibility.md"
METHODS = {"GET", "POST", "PUT", "DELETE"}
HEADS = {"method", "type", "action", "field", "fields", "kind", "key", "task key", "shard spec"}
HERE = {"same", "other", "no effect", "refused", "ours"}


@dataclass(frozen=True)
class Line:
    """A line of a table: the section that it stands in, and its cells by their heads."""

    section: str
    cells: dict[str, str]

    @property
    def here(self) -> str:
        return self.cells["here"]

    @property
    def told(self) -> str:
        """The last cell."""
        return list(self.cells.values())[-1]

    @property
    def place(self) -> str:
        return f"{self.section}: {' '.join(list(self.cells.values())[:2])}"


@dataclass(frozen=True)
class Endpoint:
    """A method and a path, each of its parameters written `{}`."""

    method: str
    path: str
    line: Line

    @property
    def key(self) -> tuple[str, str]:
        return self.method, self.path


def lines() -> Iterator[Line]:
    """Every line of a table that says what is here."""
    section, heads = "", []
    for text in PAGE.read_text().splitlines():
        if text.startswith("#"):
            section = text.lstrip("# ")
        if not text.startswith("|"):
            heads = []
            continue
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if not heads:
            heads = cells
        elif heads[0] in HEADS and "here" in heads and not text.startswith("|--"):
            yield Line(section, dict(zip(heads, cells, strict=True)))


def endpoints() -> list[Endpoint]:
    """Every endpoint, below the path that its section names."""
    found = []
    for line in lines():
        if "method" in line.cells:
            prefix = re.search(r"`(/[^`]*)`$", line.section)
            path = line.cells["path"].strip("`").partition("?")[0]
            whole = (prefix[1] if prefix else "") + path
            found.append(Endpoint(line.cells["method"], without_names(whole), line))
    return found


def without_names(path: str) -> str:
    """Write every parameter of a path `{}`."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def named(cell: str) -> tuple[list[str], list[str]]:
    """(kinds, fields) of a first cell, such as "`csv`, `tsv`: `columns`"; there may be no kinds."""
    kinds, colon, fields = cell.partition(":")
    if not colon:
        kinds, fields = "", kinds
    return re.findall(r"`([^`]+)`", kinds), re.findall(r"`([^`]+)`", fields)
