"""Sizes and rights of the batch engine. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SparkBatchOptions:
    """Sizes of the pieces of batch requests, and the locations that they may access.

    Attributes:
        split_bytes_min: Text files are not cut smaller than this.
        split_bytes_max: Nor larger: a worker holds the rows of its split.
        line_bytes_max: A row of text that is longer is unparseable; one of a database is refused.
        fetch_bytes_max: A file from HTTP may not be larger, nor the rows of a statement.
        fetch_timeout_s: How long HTTP may be silent.
        parallelism: How much is done at once; this machine's cores when 0.
        compression_level: Level of zstd.
        scratch_folder: Where work in progress goes, on a disk that Spark's workers share; None:
            the output folder when it is local, else the system's temporary folder.
        environment: Where secrets of inputs are looked up.
    """

    split_bytes_min: int = 8 << 20
    split_bytes_max: int = 192 << 20
    line_bytes_max: int = 64 << 20
    fetch_bytes_max: int = 16 << 30
    fetch_timeout_s: float = 60.0
    parallelism: int = 0
    compression_level: int = 1
    scratch_folder: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
