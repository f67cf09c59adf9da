"""Rows of the page on Druid: a line for each endpoint, field and kind, from the page's data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from reference.compatibility import sections

METHODS = {"GET", "POST", "PUT", "DELETE"}


@dataclass(frozen=True)
class Line:
    """A row: its section, the head of its first column, its cells, its status and text."""

    section: str
    head: str
    cells: tuple[str, ...]
    here: str
    told: str

    @property
    def place(self) -> str:
        return f"{self.section}: {' '.join(self.cells)}"


@dataclass(frozen=True)
class Endpoint:
    """A method and a path, each of its parameters written `{}`."""

    method: str
    path: str
    line: Line

    @property
    def key(self) -> tuple[str, str]:
        return self.method, self.path


def lines() -> list[Line]:
    """Every row that has a status."""
    return [
        Line(section.title, section.head, tuple(one.cells), one.status, one.text)
        for section in sections("druid")
        for one in section.features
        if one.status
    ]


def endpoints() -> list[Endpoint]:
    """Every endpoint, below the path that its section names."""
    found = []
    for line in lines():
        if line.head == "endpoint":
            prefix = re.search(r"`(/[^`]*)`$", line.section)
            method, _, path = line.cells[0].partition(" ")
            whole = (prefix[1] if prefix else "") + path.partition("?")[0]
            found.append(Endpoint(method, without_names(whole), line))
    return found


def without_names(path: str) -> str:
    """Write every parameter of a path `{}`."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def field_lines() -> Iterator[tuple[Line, list[str], list[str]]]:
    """(line, kinds, fields) of every line about fields."""
    for line in lines():
        if line.head == "field":
            yield line, *named(line.cells[0])


def named(cell: str) -> tuple[list[str], list[str]]:
    """(kinds, fields) of a first cell, such as "`csv`, `tsv`: `columns`"; there may be no kinds."""
    kinds, colon, fields = cell.partition(":")
    if not colon:
        kinds, fields = "", kinds
    return re.findall(r"`([^`]+)`", kinds), re.findall(r"`([^`]+)`", fields)
