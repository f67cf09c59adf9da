"""Statements over each clause of Spark's grammar, and a comparison of what two texts answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = {
    "t1": "VALUES (1, 'a'), (2, 'b'), (3, 'a'), (NULL, NULL) AS t(n, s)",
    "t2": "VALUES (1, 10), (3, 30) AS t(n, m)",
    "t3": "VALUES (1, 2, 3) AS t(c, a, b)",
}
"""The rows of the tables that `clauses` reads."""

# What depends on the moment, on chance or on the host.
_VARIES = re.compile(
    r"\b(rand|uniform|uuid|now|current_|monotonically|shuffle|localtime|unix_timestamp\(\)|version\("
    r"|reflect|java_method|user\(|curdate|aes_encrypt)",
    re.IGNORECASE,
)
_EXAMPLE = re.compile(r"^\s*> (SELECT.*?);\s*$", re.MULTILINE | re.DOTALL)


def clauses() -> list[str]:
    """Return one statement for each clause and operator; a line that begins with space goes on."""
    text = (Path(__file__).parent / "sql_clauses.sql").read_text()
    return [one for one in re.split(r"\n(?! )", text) if one]


def examples(spark: SparkSession) -> Iterator[str]:
    """Yield the examples of every function of Spark, in the order of their names."""
    for (name,) in spark.sql("SHOW FUNCTIONS").collect():
        described = spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect()
        text = "\n".join(row[0] for row in described)
        yield from (one for one in _EXAMPLE.findall(text) if not _VARIES.search(one))
