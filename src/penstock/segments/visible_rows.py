"""Visible rows of a datasource as table formats list them: files, and the visible parts of them.

Owns the records, and the positions of hidden rows in a file: rows of a segment of which newer
segments cover a part of the time. Does not decide visibility.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.core.intervals import Interval
from penstock.segments.engine_columns import Columns

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

TIME_COLUMN: Final = "__time"


@dataclass(frozen=True, slots=True)
class VisibleFile:
    """A file with visible rows.

    Attributes:
        location: The file, as engines open it.
        rows: Number of its rows, with hidden ones.
        size_bytes: Its size.
        interval: The interval of its rows.
        visible: The intervals of its visible rows, in order; empty: all are visible.
    """

    location: str
    rows: int
    size_bytes: int
    interval: Interval
    visible: tuple[Interval, ...] = ()


@dataclass(frozen=True, slots=True)
class VisibleRows:
    """The visible files of a datasource at one revision.

    Attributes:
        revision: The revision.
        files: Its published files.
        columns: Its columns, with those of rows that are not published yet.
        in_files: The distinct columns of all its files, also of those.
    """

    revision: int
    files: Sequence[VisibleFile]
    columns: Columns
    in_files: Sequence[Columns]


def are_hidden(times: pa.ChunkedArray, visible: Sequence[Interval]) -> NDArray[np.bool_]:
    """Return for each row whether it is outside all intervals.

    Args:
        times: The time column of the rows, of any unit.
        visible: The intervals of visible rows.
    """
    # Processes that read no files would waste half a second and 40 MB.
    import pyarrow as pa  # noqa: PLC0415

    numbers = times.combine_chunks().cast(pa.timestamp("us")).cast(pa.int64())
    values = numbers.to_numpy(zero_copy_only=False)
    hidden = np.ones(len(values), np.bool_)
    for one in visible:
        hidden &= (values < one.start_ms * 1000) | (values >= one.end_ms * 1000)
    return hidden
