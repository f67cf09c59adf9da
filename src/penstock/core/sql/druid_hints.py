"""Differences between Druid's SQL and Spark's, with hints for replacements. Pure.

Owns the hints for functions and forms of Druid that `druid_functions` does not translate, because
arguments and types differ, and a query that is wrong in rare cases is worse than an error with a
hint. The functions and their replacements are in `druid_function_table`.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.core.sql import tree
from penstock.core.sql.druid_function_table import FUNCTIONS, DruidFunction
from penstock.core.sql.druid_times import rounded as rounded_in_spark
from penstock.core.sql.metadata_tables import DRUID_SCHEMA, METADATA_SCHEMAS

_EXTERN: Final = (
    "only tasks read files: POST INSERT INTO … SELECT … FROM TABLE(EXTERN(…)) PARTITIONED BY …"
    " to /druid/v2/sql/task, or pass it to penstock sql, and query the datasource then"
)
_OTHER_FORMS: Final = {
    "ARRAY": "array('a', 'b')",
    "JSON_OBJECT": "to_json(named_struct('a', number))",
    "JSON_VALUE": "get_json_object(json, '$.a')",
    "POSITION": "locate('a', text, 5)",
}
# A name that Spark cannot resolve, as the error shows it.
_PART: Final = re.compile(r"`(?:[^`]|``)+`")
_COLUMN: Final = re.compile(
    rf"\[UNRESOLVED_(?:USING_)?COLUMN[^`]*?({_PART.pattern}(?:\.{_PART.pattern})*) cannot"
)
# Two patterns, because one that spans a query takes quadratic time if no TO follows.
_ROUNDED: Final = re.compile(r"\b(FLOOR|CEIL|CEILING)\s*\(", re.IGNORECASE)
_UNIT: Final = re.compile(r"\bTO\s+(\w+)\s*\)", re.IGNORECASE)
# Their arguments, or what follows them, are not SQL of Spark.
_FORM: Final = re.compile(r"\b(JSON_OBJECT|EXTERN)\s*\(", re.IGNORECASE)
_TABLE: Final = re.compile(r"TABLE_OR_VIEW_NOT_FOUND\][^`]*`(\w+)`\.`(\w+)`")
_ROUTINE: Final = re.compile(r"UNRESOLVED_ROUTINE\][^`]*`(\w+)`")
_SHOWN: Final = 200


def in_spark(sql: str, refusal: str) -> str:
    """Return what to write instead of what Spark refused; else an empty text.

    It knows forms of Druid's SQL, and texts in double quotes, which many databases allow.
    """
    if column := unresolved_column(refusal):
        text = column[-1]
        # A part of a name, and a column of USING, is not a text.
        may_be_text = len(column) == 1 and "UNRESOLVED_USING_" not in refusal
        if may_be_text and f'"{text}"' in sql and "'" not in text and len(text) <= _SHOWN:
            return f"""Double quotes enclose a name. If "{text}" is a text, write '{text}'"""
        return ""
    table = _TABLE.search(refusal)
    if table:
        return _of_table(table[1].lower())
    if routine := _ROUTINE.search(refusal):  # of DESCRIBE FUNCTION
        return function_hint(routine[1])
    return syntax_hint(sql) if "PARSE_SYNTAX_ERROR" in refusal else ""


def syntax_hint(sql: str) -> str:
    """Return what to write instead of syntax of Druid's in a statement; empty if it has none."""
    rounded = _ROUNDED.search(sql)
    unit = None if rounded is None else _UNIT.search(sql, rounded.end())
    if rounded and unit:
        time = sql[rounded.end() : unit.start()].strip()
        if len(time) > _SHOWN or time.count("(") != time.count(")"):
            time = "__time"  # the TO may belong to another call
        return f"In Spark SQL: {rounded_in_spark(rounded[1].upper(), unit[1].upper(), time)}"
    form = _FORM.search(sql)
    return "" if form is None else _of_function(form[1].upper())


def function_hint(name: str) -> str:
    """Return what to write instead of a function that Spark lacks; empty if it is not Druid's."""
    return _of_function(name.upper())


def form_hint(call: tree.Call) -> str:
    """Return what to write instead of a call with words between its arguments."""
    return f"write {_OTHER_FORMS[call.name[-1].upper()]}"


def remedy_of(one: DruidFunction) -> str:
    """Return what to write instead of a function, or instead of a call that is not translated."""
    if one.state != "absent":
        note = f" {one.note}" if one.note else ""
        return f"It is translated in calls such as {one.example}.{note}"
    if not one.sql:
        return one.note
    return f"In Spark SQL: {one.sql}" if not one.note else f"{one.note} {one.sql}"


def unresolved_column(refusal: str) -> list[str]:
    """Return the parts of the column's name that Spark did not find; none for other errors."""
    column = _COLUMN.search(refusal)
    return quoted_names(column[1]) if column else []


def quoted_names(text: str) -> list[str]:
    """Return the names in backquotes in a text of Spark."""
    return [one[1:-1].replace("``", "`") for one in _PART.findall(text)]


def _of_function(name: str) -> str:
    if name == "EXTERN":
        return f"{name} is a function of Druid's SQL. Here: {_EXTERN}"
    if name not in FUNCTIONS:
        return ""
    return f"{name} is a function of Druid's SQL. {remedy_of(FUNCTIONS[name])}"


def _of_table(schema: str) -> str:
    if schema in METADATA_SCHEMAS:  # in a command: queries never have such a name
        return (
            "Here: query it, or select its columns from INFORMATION_SCHEMA.COLUMNS; DESCRIBE and"
            " SHOW know only datasources"
        )
    if schema == DRUID_SCHEMA:
        return "Write names of datasources without a schema"
    return ""
