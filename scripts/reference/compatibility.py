"""Pages of the compatibility with Druid and NSQ, from `data/druid.yaml` and `data/nsq.yaml`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from reference.markdown import data, head, slug, table

STATUSES: Final[Mapping[str, str]] = {
    "works": "Works as in the original; the text names additions.",
    "differs": "Works in another form, which the text describes.",
    "no effect": "Is accepted and changes nothing.",
    "absent": "Does not exist or is refused; the text says what to do instead.",
    "added": "Exists only in Penstock.",
}
_METHODS: Final = frozenset({"GET", "POST", "PUT", "DELETE"})
_TESTS: Final = "https://github.com/penstock/penstock/blob/main/"
_DRUID: Final = """\
The features of Apache Druid and what becomes of them in Penstock: tasks, endpoints, fields of specs,
answers and settings. The column *status* says whether a feature works, and the last column links to
the test that shows it. [Specs](specs.md) explains the fields, [HTTP API](http-api.md) the endpoints.

Druid ignores unknown fields of a spec. Penstock refuses them, with their place and the most similar
name. A field that is absent is refused, unless its value is null, an empty list, or the default that
Druid writes; so Penstock accepts a spec as Druid's API returns it.
"""
_NSQ: Final = """\
The features of NSQ 1.3 that clients and tools use, and what becomes of them in Penstock. The column *status*
says whether a feature works, and the last column links to the test that shows it.

Paths, parameters, statuses and error codes are those of NSQ; [errors](errors.md) lists them. The tests
also send recorded conversations, valid and invalid, and compare the answers with those of nsqd.
"""


@dataclass(frozen=True)
class Feature:
    """A row of a table.

    Attributes:
        cells: Its first cells: the feature, and the default or the two values.
        status: A key of `STATUSES`; empty for settings, whose cells show both values.
        text: The difference, or what to do instead.
        test: Path of the test.
    """

    cells: Sequence[str]
    status: str
    text: str
    test: str


@dataclass(frozen=True)
class Section:
    """A table: its heading, the heading of its first column, and its rows."""

    title: str
    head: str
    features: Sequence[Feature]


@cache
def sections(name: str) -> Sequence[Section]:
    """Return the tables of `druid` or `nsq`."""
    return [
        Section(one["title"], one["head"], [_feature(one, row) for row in one["rows"]])
        for one in data(name)
    ]


def _feature(section: Mapping[str, str], row: Sequence[str]) -> Feature:
    test = section["test"]
    if row[-1].startswith("tests/"):
        *row, test = row
    if section["title"] == "Settings":
        return Feature(row[:-1], "", row[-1], test)
    return Feature(row[:-2], row[-2], row[-1], test)


def druid_page() -> str:
    """Return docs/reference/druid-compatibility.md."""
    return _page("Druid compatibility", "druid", _DRUID)


def nsq_page() -> str:
    """Return docs/reference/nsq-compatibility.md."""
    return _page("NSQ compatibility", "nsq", _NSQ)


def _page(title: str, name: str, about: str) -> str:
    lines = [head(title, "the tables of features", about)]
    lines += table(("status", "meaning"), STATUSES.items())
    # `docs/assets/status-filter.js` fills this place; without JavaScript all rows are shown.
    lines += ["", '<div id="status-filter"></div>']
    lines += ["", "## Overview", *_overview(sections(name))]
    shown = ""
    for section in sections(name):
        if section.title != shown:
            lines += ["", f"## {section.title}"]
        shown = section.title
        lines += _table(section)
    return "\n".join(lines) + "\n"


def _overview(tables: Sequence[Section]) -> Iterator[str]:
    counts: dict[str, Counter[str]] = {}
    for section in tables:
        counts.setdefault(section.title, Counter()).update(one.status for one in section.features)
    rows = [
        (
            f"[{title.replace('`', '')}](#{slug(title)})",
            *(str(count[one] or "") for one in STATUSES),
        )
        for title, count in counts.items()
        if "" not in count
    ]
    yield from table(("features", *STATUSES), rows)


def _table(section: Section) -> Iterator[str]:
    if section.title == "Settings":
        heads = [section.head, "Druid", "here", "reason of a difference", "test"]
    elif section.head == "field" and len(section.features[0].cells) > 1:
        heads = [section.head, "default of Druid", "status", "what differs or what to do", "test"]
    else:
        heads = [section.head, "status", "what differs or what to do", "test"]
    rows = [
        [
            *_shown(section, one),
            *([one.status] if one.status else []),
            one.text,
            f"[{Path(one.test).stem}]({_TESTS}{one.test})",
        ]
        for one in section.features
    ]
    yield from table(heads, rows)


def _shown(section: Section, feature: Feature) -> Sequence[str]:
    """Return the first cells; of an endpoint its method and its whole path."""
    method, _, path = feature.cells[0].partition(" ")
    if section.head != "endpoint" or method not in _METHODS or "`" in path:
        return feature.cells
    prefix = re.search(r"`(/[^`]*)`$", section.title)
    return [f"`{method} {prefix[1] if prefix else ''}{path}`"]
