"""Sizes and permissions of the batch engine. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.storage.secrets.secret_sources import Secrets


@dataclass(frozen=True, slots=True)
class SparkBatchOptions:
    """Sizes of the pieces of batch requests, and the locations that they may access.

    Attributes:
        split_bytes_min: Minimum size of a split of a text file.
        split_bytes_max: Maximum size: a worker holds the rows of its split in memory.
        line_bytes_max: Maximum size of a row; a longer row of text is unparseable, one of a
            database is refused.
        fetch_bytes_max: Maximum size of a file from HTTP, and of the rows of a statement.
        fetch_timeout_s: Time limit for each read from HTTP.
        parallelism: Number of concurrent pieces; 0: this machine's cores.
        compression_level: Level of zstd.
        scratch_folder: Folder for work in progress, on a disk that Spark's workers share; None: the
            output folder if it is local, otherwise the system's temporary folder.
        secrets: The secrets of this process.
        uploads_folder: Folder of uploads on this host; None: there are none.
    """

    split_bytes_min: int = 8 << 20
    split_bytes_max: int = 192 << 20
    line_bytes_max: int = 64 << 20
    fetch_bytes_max: int = 16 << 30
    fetch_timeout_s: float = 60.0
    parallelism: int = 0
    compression_level: int = 1
    scratch_folder: str | None = None
    secrets: Secrets = field(default_factory=Secrets)
    uploads_folder: Path | None = None
