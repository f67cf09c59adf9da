"""Published rows of a datasource, as open table formats list them, from the visible files.

Owns the step from the files that queries read to those of a table: published files only, each once,
with the intervals of its visible rows. Does not decide visibility.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.segments.parquet_footer import read_footer
from penstock.segments.visible_rows import VisibleFile
from penstock.spark.tables.table_files import TableFile


def published_files(files: Sequence[TableFile]) -> Sequence[TableFile]:
    """Return the files of segments: those that tasks announce come after them."""
    count = len(files)
    while count and files[count - 1].announced:
        count -= 1
    return files[:count]


def visible_files(
    files: Sequence[TableFile], before: Sequence[VisibleFile] = ()
) -> list[VisibleFile]:
    """Return the visible files, each once: newer segments may leave several pieces of one.

    Args:
        files: The files that queries read.
        before: An earlier result. Most of a million files are in it, and to make their records
            again would take longer than all other parts of a build of a table.
    """
    whole = {one.location: one for one in before if not one.visible}
    found: dict[str, VisibleFile] = {}
    for file in files:
        if file.clip is None:
            same = whole.get(file.path)
            # A copy of a segment under another id has the file of the first one. A file without a
            # count of rows had it read before.
            if (
                same is None
                or same.interval is not file.interval
                or file.rows not in {0, same.rows}
            ):
                same = VisibleFile(file.path, _rows(file), file.size_bytes, file.interval)
            found[file.path] = same
        elif (known := found.get(file.path)) is None:
            found[file.path] = VisibleFile(
                *(file.path, _rows(file), file.size_bytes, file.interval), (file.clip,)
            )
        elif known.visible:
            found[file.path] = replace(known, visible=(*known.visible, file.clip))
    return list(found.values())


def _rows(file: TableFile) -> int:
    """Return the number of rows of a file; those from Druid's metadata have it in their footer."""
    return file.rows or int(read_footer(file.path).num_rows)
