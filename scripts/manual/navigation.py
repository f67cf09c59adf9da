"""The sections of the site: the list in `mkdocs.yml`, in which a pattern stands for its pages.

MkDocs itself reports pages that do not exist, and pages that the list lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

Entry = str | dict[str, object]


def expanded(entries: Iterable[Entry], docs: Path) -> list[Entry]:
    """Return the entries, with the pages that a pattern stands for.

    An entry with `*` stands for all pages that match it, in the order of their names, except those
    that the same section lists.
    """
    listed = list(entries)
    own = {entry for entry in listed if isinstance(entry, str)}
    return [found for entry in listed for found in _pages(entry, own, docs)]


def _pages(entry: Entry, listed: set[str], docs: Path) -> Iterator[Entry]:
    if isinstance(entry, dict):
        yield {
            title: expanded(below, docs) if isinstance(below, list) else below
            for title, below in entry.items()
        }
    elif "*" in entry:
        names = (str(path.relative_to(docs)) for path in sorted(docs.glob(entry)))
        yield from (name for name in names if name not in listed)
    else:
        yield entry
