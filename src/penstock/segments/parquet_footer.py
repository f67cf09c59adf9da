"""Footers of Parquet files in the deep storage: number of rows, columns and statistics.

Owns how a footer is read, and what the errors mean. Each use has its own view of the content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import CorruptData, Unavailable

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def read_footer(location: str) -> pq.FileMetaData:
    """Return the footer of a file.

    Args:
        location: A path or a URL.

    Raises:
        CorruptData: It is not a Parquet file.
        Unavailable: It cannot be read.
    """
    # Processes that read no files would waste half a second and 40 MB.
    import fsspec  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        filesystem, inner = fsspec.core.url_to_fs(location)
        return pq.read_metadata(inner, filesystem=filesystem)
    except pa.ArrowInvalid as error:
        raise CorruptData(location, None, f"it is not a Parquet file ({error})") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Unavailable(f"{location} cannot be read ({error}): try again") from error
