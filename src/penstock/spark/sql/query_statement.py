"""The check that a statement only reads. Pure.

Owns the rule of how a statement may begin, and the text that is sent to Spark. Spark does parsing
and name resolution; this module ensures that nothing that could write, configure or run foreign
code reaches it. `sql_guard` checks how Spark resolved a query before it runs.

In Spark's grammar a statement that begins with SELECT, VALUES, TABLE or a parenthesis is always a
query. WITH may precede an INSERT, so the text after its definitions is checked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.names import normalised
from penstock.core.similar_names import most_similar
from penstock.core.sql_sizes import check_sizes, check_text, statement_tokens
from penstock.core.sql_text import (
    Token,
    check_calls,
    check_clauses,
    check_unquoted,
    is_table_call,
    place,
    tokens,
)
from penstock.core.sql_values import check_values

_QUERY_STARTS: Final = frozenset({"SELECT", "VALUES", "TABLE", "("})
_DESCRIBE: Final = frozenset({"DESCRIBE", "DESC"})
_BEFORE_TABLES: Final = _DESCRIBE | {"FROM", "JOIN", "TABLE"}
_COMMAND_STARTS: Final = _DESCRIBE | {"SHOW"}
_SHOWN: Final = frozenset(
    {"TABLES", "VIEWS", "COLUMNS", "FUNCTIONS", "DATABASES", "SCHEMAS", "NAMESPACES", "CATALOGS"}
)
_SHOWN_FUNCTIONS: Final = frozenset({"USER", "SYSTEM", "ALL"})
# They would reveal where things are stored on the host.
_NOT_DESCRIBED: Final = frozenset({"DATABASE", "SCHEMA", "NAMESPACE", "CATALOG", "PROCEDURE"})
_DESCRIBE_OPTIONS: Final = frozenset({"EXTENDED", "FORMATTED"})
_COMMAND_REMEDY: Final = (
    "SHOW TABLES, VIEWS, COLUMNS, FUNCTIONS, DATABASES and CATALOGS, DESCRIBE of a datasource, a"
    " query or a function, and EXPLAIN are supported"
)
_COMMAND_WORDS_MAX: Final = 12
_NOT_LINE_END: Final = re.compile(r"[^\r\n]")
_EXPLAIN_MODES: Final = frozenset({"EXTENDED", "CODEGEN", "COST", "FORMATTED", "LOGICAL"})
_REMEDY: Final = (
    "a query begins with SELECT, WITH, VALUES, EXPLAIN, SHOW or DESCRIBE; INSERT INTO and"
    " REPLACE INTO write rows"
)
_KEYWORDS: Final = (
    *("SELECT", "WITH", "VALUES", "TABLE", "EXPLAIN", "SHOW", "DESCRIBE"),
    *("INSERT", "REPLACE"),
)
_SIMILAR_MIN: Final = 0.7
_WRITES: Final = frozenset({"INSERT", "REPLACE"})
_WRITE_REMEDY: Final = (
    "only a task writes rows: begin the statement with INSERT INTO or REPLACE INTO, and pass it to"
    " penstock sql, or POST it to /druid/v2/sql/task"
)
_DROP_REMEDY: Final = (
    "to remove rows from queries, mark their segments as unused: penstock segment mark-unused"
)
_EXTERN_REMEDY: Final = (
    "only tasks read files: POST INSERT INTO … SELECT … FROM TABLE(EXTERN(…)) PARTITIONED BY … to"
    " /druid/v2/sql/task, or pass it to penstock sql, and query the datasource then"
)
# Statements that change rows elsewhere.
_CHANGES: Final = frozenset({"DELETE", "UPDATE", "MERGE", "TRUNCATE"})
_CHANGE_REMEDY: Final = (
    "rows are changed by rewriting their interval: REPLACE INTO … OVERWRITE … SELECT the rows to"
    " keep, or a task that reads the datasource into itself with a filter"
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that only reads.

    Attributes:
        query: The text of its query, without surrounding text; empty for other commands.
        explain: Spark's keyword of the EXPLAIN mode; empty without EXPLAIN.
        command: The text of a SHOW or DESCRIBE; empty for queries, except DESCRIBE of a query.
    """

    query: str = ""
    explain: str = ""
    command: str = ""

    @property
    def is_query(self) -> bool:
        """Return whether it is a query whose rows are the answer."""
        return not self.explain and not self.command


def read_statement(sql: str, parameters: Sequence[object] = ()) -> Statement:
    """Parse and check a statement.

    Args:
        sql: The statement.
        parameters: The values of each `?`.

    Raises:
        InvalidRequest: It writes, sets something, calls foreign code, creates a value that is too
            large, or is not a statement.
    """
    check_text(sql)
    found = statement_tokens(sql)
    check_sizes(sql, found)
    check_values(sql, found, parameters)
    while found and found[-1].text == ";":
        found.pop()
    if not found:
        raise InvalidRequest("the statement is empty: write a query such as SELECT 1")
    first = _check_start(sql, found, 0)
    check_calls(sql, found)
    check_unquoted(sql, found)
    check_clauses(sql, found)
    _check_tables(sql, found)
    _check_closing(sql, found)
    if found[0].text == "SHOW":
        return Statement(command=_shown(sql, found))
    if found[0].text in _DESCRIBE:
        return _described(sql, found)
    end = found[-1].position + len(found[-1].raw)
    query = _query(sql, found[first].position, end)
    if not first:
        return Statement(query=query)
    mode = found[1].text.lower() if first == 2 else "simple"
    return Statement(query=query, explain="extended" if mode == "logical" else mode)


def with_stored_names(sql: str, datasources: Collection[str]) -> str:
    """Return a statement in which names of datasources are spelt as they are stored.

    Names of columns stay, because they are compared exactly. Names after FROM, JOIN, TABLE and
    DESCRIBE, and names before a dot, are changed.
    """
    if sql.isascii():
        return sql
    found = tokens(sql)
    parts, end = [], 0
    for at, token in enumerate(found):
        before = found[at - 1].text if at else ""
        after = found[at + 1].text if at + 1 < len(found) else ""
        if before not in _BEFORE_TABLES and after != ".":
            continue
        name = normalised(token.name)
        if name != token.name and token.name not in datasources and name in datasources:
            # In normal form, quotes and doubled quotes stay as they are.
            parts += [sql[end : token.position], normalised(token.raw)]
            end = token.position + len(token.raw)
    return "".join([*parts, sql[end:]])


def _query(sql: str, begin: int, end: int) -> str:
    """Return a part of a statement, padded to the line and column that errors must show."""
    return _NOT_LINE_END.sub(" ", sql[:begin]) + sql[begin:end]


def _check_closing(sql: str, found: list[Token]) -> None:
    """Refuse unbalanced parentheses, which could leave the parentheses around the statement."""
    depth = 0
    for token in found:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth < 0:
            raise InvalidRequest(f") closes nothing, {place(sql, token.position)}: remove it")
        if token.text == ";":
            raise InvalidRequest(
                f"write only one statement, {place(sql, token.position)}: send the others after it"
            )


def _shown(sql: str, found: list[Token]) -> str:
    at = 2 if len(found) > 1 and found[1].text in _SHOWN_FUNCTIONS else 1
    what = found[at].text if at < len(found) else ""
    if what not in _SHOWN or (at == 2 and what != "FUNCTIONS"):
        raise _refused_command(sql, found[min(at, len(found) - 1)])
    return _command(sql, found)


def _described(sql: str, found: list[Token]) -> Statement:
    at = 1
    second = found[at].text if at < len(found) else ""
    if second == "QUERY" or second in _QUERY_STARTS - {"TABLE"} or second == "WITH":
        at += second == "QUERY"
        _check_query(sql, found, at)
        end = found[-1].position + len(found[-1].raw)
        return Statement(query=_query(sql, found[at].position, end), command="DESCRIBE QUERY")
    if second in _NOT_DESCRIBED:
        raise _refused_command(sql, found[at])
    # EXTENDED and FORMATTED would reveal where a table is stored. Spark would read a second one as
    # the option, if only the first one were removed.
    at += second in {"TABLE", "FUNCTION"}
    for number, token in enumerate(found):
        if number != at and token.text in _DESCRIBE_OPTIONS:
            raise InvalidRequest(
                f"{token.text} is not allowed, {place(sql, token.position)}: remove it, because"
                f' DESCRIBE shows no paths; a name is written in quotes, "{token.name}"'
            )
    is_dropped = at < len(found) and found[at].text in _DESCRIBE_OPTIONS and second != "FUNCTION"
    return Statement(command=_command(sql, found[:at] + found[at + is_dropped :]))


def _command(sql: str, found: list[Token]) -> str:
    """Return the text of a command, built only from checked names and texts."""
    for token in found:
        if not (token.name or token.is_text or token.text == "."):
            raise _refused_command(sql, token)
    if len(found) > _COMMAND_WORDS_MAX:
        raise _refused_command(sql, found[_COMMAND_WORDS_MAX])
    return " ".join(token.raw for token in found)


def _refused_command(sql: str, token: Token) -> InvalidRequest:
    where = place(sql, token.position)
    return InvalidRequest(f"{token.raw:.40} is not allowed, {where}: {_COMMAND_REMEDY}")


def _check_tables(sql: str, found: list[Token]) -> None:
    """Refuse functions that only tasks support; the error contains none of their arguments."""
    for at, token in enumerate(found):
        if token.name.upper() == "EXTERN" and is_table_call(found, at):
            where = place(sql, token.position)
            raise InvalidRequest(f"EXTERN is not supported in queries, {where}: {_EXTERN_REMEDY}")


def _check_start(sql: str, found: list[Token], at: int) -> int:
    """Return the index at which the query of a statement begins, or its command."""
    first = found[at].text if at < len(found) else ""
    if first == "EXPLAIN":
        at += 1
        if at < len(found) and found[at].text in _EXPLAIN_MODES:
            at += 1
        elif at < len(found) and found[at].text == "PLAN":
            raise InvalidRequest(
                f"PLAN is unknown, {place(sql, found[at].position)}: in Spark SQL this is EXPLAIN"
                " SELECT …, without PLAN FOR"
            )
        _check_query(sql, found, at)
    elif first not in _COMMAND_STARTS:
        _check_query(sql, found, at)
    return at


def _check_query(sql: str, found: list[Token], at: int) -> None:
    first = found[at].text if at < len(found) else ""
    if first in _QUERY_STARTS:
        return
    if first == "WITH":
        body = _after_definitions(found, at + 1)
        if body < len(found) and found[body].text in _QUERY_STARTS:
            return
        if body < len(found):
            raise _refused(sql, found[body])
        raise InvalidRequest(f"WITH defines tables, but no query follows: {_REMEDY}")
    raise _refused(sql, found[min(at, len(found) - 1)])


def _after_definitions(found: list[Token], at: int) -> int:
    """Return the index after `name [(columns)] [AS] ( query )`, for all definitions."""

    def word(index: int) -> str:
        return found[index].text if index < len(found) else ""

    if word(at) == "RECURSIVE":
        at += 1
    while True:
        at += 1  # the name
        if word(at) == "(":
            at = _past_parenthesis(found, at)
        if word(at) == "MAX":
            at += len(("MAX", "RECURSION", "LEVEL", "10"))
        if word(at) == "AS":
            at += 1
        if word(at) == "(":
            at = _past_parenthesis(found, at)
        if word(at) != ",":
            return at
        at += 1


def _past_parenthesis(found: list[Token], at: int) -> int:
    depth = 0
    while at < len(found):
        depth += {"(": 1, ")": -1}.get(found[at].text, 0)
        at += 1
        if not depth:
            return at
    return at


def _refused(sql: str, token: Token) -> InvalidRequest:
    what = f"{token.text} is not allowed" if token.text else "this is not a statement"
    return InvalidRequest(f"{what}, {place(sql, token.position)}: {_remedy(token.text)}")


def _remedy(word: str) -> str:
    if word in _CHANGES:
        return _CHANGE_REMEDY
    if word in _WRITES:
        return _WRITE_REMEDY
    if word == "DROP":
        return _DROP_REMEDY
    near = most_similar(word, _KEYWORDS, resemblance=_SIMILAR_MIN)
    return _REMEDY if near is None else f"did you mean {near}? {_REMEDY}"
