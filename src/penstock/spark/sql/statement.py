"""The check that a statement only reads. Pure.

Owns the rule of what a statement may begin with. Parsing and names are Spark's own affair; the
point here is that nothing that could write, configure or run foreign code reaches it.

In Spark's grammar a statement that begins with SELECT, VALUES, TABLE or a parenthesis is a query,
whatever follows. WITH may lead to an INSERT, so what follows its definitions is looked at.
"""

from __future__ import annotations

from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.sqltext import Token, check_calls, is_table_call, place, tokens

_QUERY_STARTS: Final = frozenset({"SELECT", "VALUES", "TABLE", "("})
_COMMAND_STARTS: Final = frozenset({"SHOW", "DESCRIBE", "DESC"})
_EXPLAIN_MODES: Final = frozenset({"EXTENDED", "CODEGEN", "COST", "FORMATTED", "LOGICAL"})
_MEND: Final = "only queries are answered here: SELECT, WITH, VALUES, EXPLAIN, SHOW and DESCRIBE"
_EXTERN_MEND: Final = (
    "only tasks read files: POST INSERT INTO … SELECT … FROM TABLE(EXTERN(…)) PARTITIONED BY … to"
    " /druid/v2/sql/task, or give it to penstock sql, and ask the datasource then"
)
# What changes rows elsewhere; INSERT and REPLACE do not come here.
_CHANGES: Final = frozenset({"DELETE", "UPDATE", "MERGE", "TRUNCATE"})
_CHANGE_MEND: Final = (
    "rows are changed by writing their time anew: REPLACE INTO … OVERWRITE … SELECT the rows that"
    " stay, or a task that reads the datasource into itself with a filter"
)


def check_reads_only(sql: str) -> bool:
    """Return whether the statement is a query, as opposed to one about tables, if it only reads.

    Raises:
        InvalidRequest: It writes, sets something, calls foreign code, or is no statement.
    """
    found = tokens(sql)
    while found and found[-1].text == ";":
        found.pop()
    if not found:
        raise InvalidRequest("the statement is empty: write a query such as SELECT 1")
    check_calls(sql, found)
    _check_tables(sql, found)
    return _check_start(sql, found, 0)


def _check_tables(sql: str, found: list[Token]) -> None:
    """Refuse what only a task reads; the error has nothing of its arguments."""
    for at, token in enumerate(found):
        if token.name.upper() == "EXTERN" and is_table_call(found, at):
            where = place(sql, token.position)
            raise InvalidRequest(f"EXTERN is not read by queries, {where}: {_EXTERN_MEND}")


def _check_start(sql: str, found: list[Token], at: int) -> bool:
    first = found[at].text if at < len(found) else ""
    if first in _QUERY_STARTS:
        return True
    if first == "WITH":
        body = _after_definitions(found, at + 1)
        if body < len(found) and found[body].text in _QUERY_STARTS:
            return True
        if body < len(found):
            raise _refused(sql, found[body])
        raise InvalidRequest(f"WITH defines tables, but no query follows: {_MEND}")
    if first == "EXPLAIN":
        at += 1
        if at < len(found) and found[at].text in _EXPLAIN_MODES:
            at += 1
        elif at < len(found) and found[at].text == "PLAN":
            raise InvalidRequest(
                f"PLAN is not known, {place(sql, found[at].position)}: in Spark SQL this is EXPLAIN"
                " SELECT …, without PLAN FOR"
            )
        _check_start(sql, found, at)
        return False
    if first in _COMMAND_STARTS:
        return False
    raise _refused(sql, found[min(at, len(found) - 1)])


def _after_definitions(found: list[Token], at: int) -> int:
    """Return the index of what follows `name [(columns)] [AS] ( query )`, comma by comma."""

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
    what = f"{token.text} is not allowed" if token.text else "this is no statement"
    mend = _CHANGE_MEND if token.text in _CHANGES else _MEND
    return InvalidRequest(f"{what}, {place(sql, token.position)}: {mend}")
