"""The indexing engine on Spark."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.indexing.engine import (
    DataFile,
    MergeRequest,
    PersistRequest,
    PersistResult,
)
from penstock.spark.session import SparkSessions


@dataclass(frozen=True, slots=True)
class SparkEngineOptions:
    """Sizes that decide how a request is cut.

    Attributes:
        split_bytes_min: A read split is not made smaller than this.
        parallelism: Splits at most; the cores that Spark has when 0.
        compression: Parquet codec.
        compression_level: Level of zstd.
    """

    split_bytes_min: int = 8 << 20
    parallelism: int = 0
    compression: str = "zstd"
    compression_level: int = 1


class SparkEngine:
    """`IndexingEngine` on a Spark session; any thread may call it, several at once."""

    def __init__(self, sessions: SparkSessions, options: SparkEngineOptions | None = None) -> None:
        self._sessions = sessions
        self._options = options or SparkEngineOptions()

    def persist(self, request: PersistRequest) -> PersistResult:
        """Write the rows of the ranges; see `IndexingEngine.persist`.

        Raises:
            EngineUnavailable: Spark was lost; try again into a new folder.
            EngineFailure: The request fails for good.
        """
        raise NotImplementedError

    def merge(self, request: MergeRequest) -> DataFile:
        """Write one file of all rows of the given ones; raises as `persist`."""
        raise NotImplementedError

    def close(self) -> None:
        """End the Spark session."""
        self._sessions.close()
