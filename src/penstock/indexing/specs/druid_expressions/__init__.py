"""Druid's expressions: parsed, and translated to Spark SQL. Pure.

An expression of a spec may be Spark SQL or Druid's. It is taken as Spark SQL unless it has a part
that only Druid has (`&&`, ``cast(x, 'LONG')``, a function such as `timestamp_floor`); then all of
it has Druid's meaning: `||` is or, `^` is a power, `substring` counts from 0.
"""

from penstock.indexing.specs.druid_expressions.expression_dialect import as_spark_sql, is_druids
from penstock.indexing.specs.druid_expressions.parser import parse
from penstock.indexing.specs.druid_expressions.time_functions import date_pattern
from penstock.indexing.specs.druid_expressions.translation import translate, type_of
from penstock.indexing.specs.druid_expressions.tree import (
    Binary,
    Expression,
    FunctionCall,
    Literal,
    Name,
    Type,
    Unary,
    Written,
    as_text,
    with_names,
)

__all__ = [
    "Binary",
    "Expression",
    "FunctionCall",
    "Literal",
    "Name",
    "Type",
    "Unary",
    "Written",
    "as_spark_sql",
    "as_text",
    "date_pattern",
    "is_druids",
    "parse",
    "translate",
    "type_of",
    "with_names",
]
