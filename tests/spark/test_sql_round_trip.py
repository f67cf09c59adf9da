"""The tree of a statement has the meaning that Spark gives to its text.

`sql_generator_kit` writes a statement from its tree alone, with a parenthesis around each
operation: Spark must give the same names, types and rows for it as for the text. With the variable
`HYPOTHESIS_PROFILE=soak` the examples of all functions are compared, otherwise a sample.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.core.sql.parser import Parser
from penstock.core.sql.writer import written
from tests.kits.sql_corpus_kit import TABLES, clauses, examples
from tests.kits.sql_generator_kit import Generator

SETTINGS = {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"}
STEP = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 40


@pytest.fixture
def rows(spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: str(spark.conf.get(name)) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    for name, text in TABLES.items():
        spark.sql(f"SELECT * FROM {text}").createOrReplaceTempView(name)
    yield spark
    for name in TABLES:
        spark.catalog.dropTempView(name)
    for name, value in before.items():
        spark.conf.set(name, value)


def answer(spark: SparkSession, sql: str) -> object:
    """Return names, types and rows of a query, or Spark's refusal."""
    try:
        frame = spark.sql(sql)
        types = [(one.name, one.dataType.simpleString()) for one in frame.schema.fields]
        return types, sorted(str(tuple(row)) for row in frame.collect())
    except PySparkException as error:
        return error


def compared(spark: SparkSession, statements: Iterable[str]) -> tuple[Counter[str], list[str]]:
    """Return how many statements were the same or refused by Spark, and those that differ."""
    counts: Counter[str] = Counter()
    different = []
    for sql in statements:
        parser = Parser(sql)
        root = parser.whole(parser.query)
        assert written(sql, parser.tokens, root).split() == without_comments(sql).split()
        direct = answer(spark, sql)
        if isinstance(direct, PySparkException):
            counts["refused by Spark"] += 1
            continue
        generated = Generator(parser.tokens).text(root)
        if answer(spark, generated) == direct:
            counts["same"] += 1
        else:
            different.append(f"{sql}\n{generated}")
    return counts, different


def without_comments(sql: str) -> str:
    return (
        sql.replace("/* why */", "").replace("-- because", "").replace("/* and /* nested */ */", "")
    )


def test_each_clause_has_the_meaning_of_its_text(rows: SparkSession) -> None:
    counts, different = compared(rows, clauses())
    assert different == []
    assert counts == {"same": len(clauses())}


def test_examples_of_functions_have_the_meaning_of_their_text(rows: SparkSession) -> None:
    found = [*examples(rows)][::STEP]
    counts, different = compared(rows, found)
    assert different == []
    # Spark refuses some of its own examples in ANSI mode.
    assert counts["same"] >= 0.9 * len(found)
    print(f"{len(found)} examples: {dict(counts)}")
