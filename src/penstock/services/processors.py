"""Which processors come with Penstock: those of flows, and those that need Spark beside them.

Owns the table of both, for the flow service and the commands. Nothing is imported before it is
used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.flow.processors.builtin import BUILTIN
from penstock.spark.flow.builtin import SPARK_PROCESSORS

PROCESSORS: Final[Mapping[str, str]] = {**BUILTIN, **SPARK_PROCESSORS}
