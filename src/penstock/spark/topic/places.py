"""Where the records of an offset range are, as text that fits where a folder of log files does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import NotFound
from penstock.indexing.engine import TopicRange
from penstock.spark.topic.splits import SourceRange

if TYPE_CHECKING:
    from penstock.indexing.engine import StreamRange


def as_source(wanted: StreamRange) -> SourceRange:
    """Return a range of a request as one of splits.

    Raises:
        NotFound: Nothing here reads such a source.
    """
    if not isinstance(wanted, TopicRange):
        raise NotFound(
            f"partition {wanted.partition} is not in log files, and nothing else is read"
        )
    return SourceRange(wanted.partition, wanted.folder, wanted.start, wanted.end)
