"""The sections of the site: the list in `mkdocs.yml`, without pages that are not written yet.

MkDocs itself reports pages that the list lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

Entry = str | dict[str, object]


def existing_pages(entries: Iterable[Entry], docs: Path) -> list[Entry]:
    """Return the entries whose pages exist; a section without any is left out.

    An entry with `*` stands for all pages that match it, in the order of their names, except those
    that the same section lists.
    """
    listed = list(entries)
    own = {entry for entry in listed if isinstance(entry, str)}
    return [found for entry in listed for found in _expanded(entry, own, docs)]


def _expanded(entry: Entry, listed: set[str], docs: Path) -> Iterator[Entry]:
    if isinstance(entry, dict):
        ((title, below),) = entry.items()
        if isinstance(below, list):
            if pages := existing_pages(below, docs):
                yield {title: pages}
        elif (docs / str(below)).is_file():
            yield entry
    elif "*" in entry:
        names = (str(path.relative_to(docs)) for path in sorted(docs.glob(entry)))
        yield from (name for name in names if name not in listed)
    elif (docs / entry).is_file():
        yield entry
