"""The check that a statement only reads. Pure.

Owns how a statement may begin, and the commands SHOW and DESCRIBE, which consist of words. Queries
are parsed and checked by `core.sql.checked_query`. So nothing that could write, configure or run
foreign code reaches Spark. `sql_guard` checks how Spark resolved a query before it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.names import normalised
from penstock.core.similar_names import most_similar
from penstock.core.sql import tree
from penstock.core.sql.checked_query import CheckedQuery, checked_query
from penstock.core.sql.lookup_calls import LookupRead
from penstock.core.sql.metadata_reads import MetadataRead
from penstock.core.sql.parser import Parser
from penstock.core.sql.refused_words import word_remedy
from penstock.core.sql_sizes import check_text, statement_tokens
from penstock.core.sql_text import Token, check_variables, place, tokens
from penstock.spark.sql.constant_work import check_constant_work

_QUERY_STARTS: Final = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "("})
_DESCRIBE: Final = frozenset({"DESCRIBE", "DESC"})
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
# They begin what a command does not have, such as a script or a format of files.
_NO_COMMAND: Final = frozenset({"USING", "SELECT", "INSERT", "DIRECTORY"})
_COMMAND_WORDS_MAX: Final = 12
_EXPLAIN_MODES: Final = frozenset(
    {"EXTENDED", "CODEGEN", "COST", "FORMATTED", "LOGICAL", "ANALYZE"}
)
ANALYZE: Final = "analyze"
"""Mode of EXPLAIN that runs the query and measures its operators, which Spark's SQL lacks."""
_REMEDY: Final = (
    "a query begins with SELECT, WITH, VALUES, EXPLAIN, SHOW or DESCRIBE; INSERT INTO and"
    " REPLACE INTO write rows"
)
_KEYWORDS: Final = (
    *("SELECT", "WITH", "VALUES", "TABLE", "EXPLAIN", "SHOW", "DESCRIBE"),
    *("INSERT", "REPLACE"),
)
_SIMILAR_MIN: Final = 0.7


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that only reads.

    Attributes:
        query: The text of its query, without surrounding text; empty for other commands.
        explain: Spark's keyword of the EXPLAIN mode, or `ANALYZE`; empty without EXPLAIN.
        command: The text of a SHOW or DESCRIBE; empty for queries, except DESCRIBE of a query.
        tables: The names, in lower case and without qualifiers, of the tables that the query reads,
            except metadata tables and lookups.
        checked: The query with its tree; None without a query.
    """

    query: str = ""
    explain: str = ""
    command: str = ""
    tables: frozenset[str] = frozenset()
    checked: CheckedQuery | None = None

    @property
    def root(self) -> tree.Query | None:
        """Return the tree of the query; None without a query."""
        return None if self.checked is None else self.checked.root

    @property
    def metadata(self) -> tuple[MetadataRead, ...]:
        """Return the metadata tables that the query reads."""
        return () if self.checked is None else self.checked.metadata

    @property
    def lookups(self) -> tuple[LookupRead, ...]:
        """Return the lookups and columns that the query reads."""
        return () if self.checked is None else self.checked.lookups

    @property
    def reads_datasources_alone(self) -> bool:
        """Return whether the query reads neither metadata tables nor lookups."""
        return not (self.metadata or self.lookups)

    @property
    def is_query(self) -> bool:
        """Return whether it is a query whose rows are the answer."""
        return not self.explain and not self.command


def read_statement(
    sql: str, parameters: Sequence[object] = (), *, has_metadata: bool = False
) -> Statement:
    """Parse and check a statement.

    Args:
        sql: The statement.
        parameters: The values of each `?`.
        has_metadata: Whether metadata tables and lookups can be read where it runs.

    Raises:
        InvalidRequest: It writes, sets something, calls foreign code, creates a value that is too
            large, or is not a statement.
    """
    check_text(sql)
    found = statement_tokens(sql)
    while found and found[-1].text == ";":
        found.pop()
    if not found:
        raise InvalidRequest("the statement is empty: write a query such as SELECT 1")
    first = _query_start(sql, found)
    if first is None:
        check_variables(sql)
        return Statement(
            command=_shown(sql, found) if found[0].text == "SHOW" else _described(sql, found)
        )
    checked = checked_query(
        sql, found[first].position, parameters, found, has_metadata=has_metadata
    )
    check_constant_work(checked.text, checked.tokens, checked.root, parameters)
    explain = command = ""
    if found[0].text in _DESCRIBE:
        command = "DESCRIBE QUERY"
    elif first:
        mode = found[1].text.lower() if found[1].text in _EXPLAIN_MODES else "simple"
        explain = "extended" if mode == "logical" else mode
    return Statement(checked.text, explain, command, checked.tables, checked)


def _query_start(sql: str, found: Sequence[Token]) -> int | None:
    """Return the index at which the query of a statement begins; None if it has none."""
    words = [token.text for token in found[:3]]
    match words:
        case ["SHOW", *_]:
            return None
        case ["DESCRIBE" | "DESC", "QUERY", *_] | ["EXPLAIN", "PLAN", "FOR"]:
            at = 2 if words[0] != "EXPLAIN" else 3
        case ["DESCRIBE" | "DESC", *rest]:
            return 1 if rest and rest[0] in _QUERY_STARTS - {"TABLE"} else None
        case ["EXPLAIN", *rest]:
            at = 2 if rest and rest[0] in _EXPLAIN_MODES else 1
        case _:
            at = 0
    if at < len(found) and found[at].text in _QUERY_STARTS:
        return at
    token = found[min(at, len(found) - 1)]
    what = f"{token.text} is not allowed" if token.text else "this is not a statement"
    raise InvalidRequest(f"{what}, {place(sql, token.position)}: {_remedy(token.text)}")


def _remedy(word: str) -> str:
    if remedy := word_remedy(word):
        return remedy
    near = most_similar(word, _KEYWORDS, resemblance=_SIMILAR_MIN)
    return _REMEDY if near is None else f"did you mean {near}? {_REMEDY}"


def with_stored_names(sql: str, datasources: Collection[str]) -> str:
    """Return a statement in which names of datasources are spelt as they are stored.

    Names of tables and the names before those of columns are changed; in DESCRIBE and SHOW, all
    names. Names of columns stay, because they are compared exactly.

    Raises:
        InvalidRequest: It is not a statement.
    """
    if sql.isascii():
        return sql
    found = tokens(sql)
    first = _query_start(sql, found)
    named = found if first is None else _table_names(sql, found[first].position)
    parts, end = [], 0
    for token in named:
        name = normalised(token.name)
        if name != token.name and token.name not in datasources and name in datasources:
            # In normal form, quotes and doubled quotes stay as they are.
            parts += [sql[end : token.position], normalised(token.raw)]
            end = token.position + len(token.raw)
    return "".join([*parts, sql[end:]])


def _table_names(sql: str, position: int) -> list[Token]:
    """Return the tokens of a query that name tables, in their order."""
    parser = Parser(sql, position)
    found: set[int] = set()
    for node in tree.walk(parser.whole(parser.query)):
        count = 0
        if isinstance(node, tree.Table):
            count = len(node.parts)
        elif isinstance(node, tree.Name):
            count = len(node.parts) - 1
        elif isinstance(node, tree.Star):
            count = len(node.qualifier)
        found.update(range(node.start, node.start + 2 * count, 2))
    return [parser.tokens[at] for at in sorted(found)]


def _shown(sql: str, found: list[Token]) -> str:
    at = 2 if len(found) > 1 and found[1].text in _SHOWN_FUNCTIONS else 1
    what = found[at].text if at < len(found) else ""
    if what not in _SHOWN or (at == 2 and what != "FUNCTIONS"):
        raise _refused_command(sql, found[min(at, len(found) - 1)])
    return _command(sql, found)


def _described(sql: str, found: list[Token]) -> str:
    at = 1
    second = found[at].text if at < len(found) else ""
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
    return _command(sql, found[:at] + found[at + is_dropped :])


def _command(sql: str, found: list[Token]) -> str:
    """Return the text of a command, built only from checked names and texts."""
    for token in found:
        is_known = token.name or token.is_text or token.text == "."
        if not is_known or token.text in _NO_COMMAND or (token.text and not token.raw.isascii()):
            raise _refused_command(sql, token)
    if len(found) > _COMMAND_WORDS_MAX:
        raise _refused_command(sql, found[_COMMAND_WORDS_MAX])
    return " ".join(token.raw for token in found)


def _refused_command(sql: str, token: Token) -> InvalidRequest:
    where = place(sql, token.position)
    return InvalidRequest(f"{token.raw:.40} is not allowed, {where}: {_COMMAND_REMEDY}")
