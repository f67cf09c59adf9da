"""The Spark session of a process: made on first use, made again after Spark was lost.

Owns how a Spark session is reached and which of Spark's errors mean "Spark is gone" as opposed to
"the request is wrong". It does not start the JVM (`server`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class SparkSessionOptions:
    """Where Spark is: a Connect address (`sc://…`) or a classic master (`local[2]`, `spark://…`)."""

    address: str
    app_name: str = "penstock"
    conf: Mapping[str, str] = field(default_factory=dict)
    retry_limit: int = 3
    retry_wait_max_ms: int = 1_000


class SparkSessions:
    """Gives the Spark session of this process. Thread-safe; the mutex guards two fields."""

    def __init__(self, options: SparkSessionOptions) -> None:
        self._options = options

    def get(self) -> SparkSession:
        """Return the session, connecting first when there is none.

        Raises:
            EngineUnavailable: Spark cannot be reached.
        """
        raise NotImplementedError

    def forget(self, session: SparkSession) -> None:
        """Drop a session that was lost, so that the next `get` connects again."""
        raise NotImplementedError

    def close(self) -> None:
        """End the session."""
        raise NotImplementedError
