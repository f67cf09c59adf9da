"""The check that a query consists of known parts, and the text of it that Spark gets. Pure.

Syntax that the parser does not know is refused, and so are functions that are not on the
allow-list. `call_check` checks arguments that could open files, `values` the size of values, and
`sizes` the size of the statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.similar_names import most_similar
from penstock.core.sql import tree
from penstock.core.sql.call_check import REFUSED_FUNCTIONS, check_call
from penstock.core.sql.druid_functions import (
    DRUID_FUNCTIONS,
    is_translated,
    is_unnest,
    reorders,
    translated,
    unnested,
)
from penstock.core.sql.druid_hints import form_hint, function_hint, syntax_hint
from penstock.core.sql.functions import FUNCTION_LIST, FUNCTIONS
from penstock.core.sql.lookup_calls import (
    LookupRead,
    call_read,
    is_call,
    is_lookup,
    written_call,
)
from penstock.core.sql.metadata_reads import (
    MetadataRead,
    lookup_reads,
    metadata_reads,
    refuse_lookup,
    refuse_metadata,
    replaced_names,
    replaced_table,
)
from penstock.core.sql.metadata_tables import METADATA_SCHEMAS
from penstock.core.sql.parser import Parser
from penstock.core.sql.refused_words import word_remedy
from penstock.core.sql.sizes import check_sizes
from penstock.core.sql.values import check_values
from penstock.core.sql.writer import one_line, written
from penstock.core.sql_text import Token, check_variables, each_token, place

# Spark requires their length, which Druid's SQL leaves out.
_TEXT_TYPES: Final = frozenset({"VARCHAR", "CHAR", "CHARACTER"})
# A call with these words between its arguments is Druid's alone.
_DRUID_FORMS: Final = frozenset({("[",), ("KEY", "VALUE"), ("RETURNING",), ("IN", "FROM")})
_CALLABLE: Final = FUNCTIONS - REFUSED_FUNCTIONS.keys()
# Names that an error may suggest: those of Spark are shown in lower case.
_SUGGESTED: Final = (*_CALLABLE, *(DRUID_FUNCTIONS - {name.upper() for name in _CALLABLE}))
_SIMILAR_MIN: Final = 0.7
# Characters of all translations of a statement. A translation may repeat its argument, so calls
# within each other double the text with each level.
_TRANSLATED_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class CheckedQuery:
    """A query whose parts are all known.

    Attributes:
        root: The tree of `text`, in which Druid's functions are Spark's.
        text: Its text for Spark, padded to the line and column at which it stands.
        tables: The names of the tables that it reads, in lower case and without qualifiers, except
            metadata tables and lookups.
        tokens: The tokens of the tree, with their positions in `text`.
        is_translated: Whether the text has other calls than the user's.
        metadata: The metadata tables that it reads.
        lookups: The lookups that it reads.
    """

    root: tree.Query
    text: str
    tables: frozenset[str]
    tokens: Sequence[Token] = ()
    is_translated: bool = False
    metadata: tuple[MetadataRead, ...] = ()
    lookups: tuple[LookupRead, ...] = ()


def checked_query(
    sql: str,
    position: int = 0,
    parameters: Sequence[object] = (),
    tokens: Sequence[Token] | None = None,
    *,
    has_metadata: bool = False,
) -> CheckedQuery:
    """Parse and check the query with which a text ends.

    Args:
        sql: The text.
        position: Where the query begins.
        parameters: The known values of each `?`.
        tokens: The tokens of the text, if they are known.
        has_metadata: Whether metadata tables and lookups can be read where the query runs.

    Raises:
        InvalidRequest: A part of it is not known, runs other code than SQL, opens files, or has a
            value that is too large; the message has its place.
    """
    check_variables(sql)
    parser = Parser(sql, position, tokens)
    try:
        root = parser.whole(parser.query)
    except InvalidRequest as error:  # narrow: adds what to write instead
        hint = syntax_hint(sql) or word_remedy(parser.keyword)
        raise InvalidRequest(f"{error}\n{hint}" if hint else str(error)) from None
    replaced: dict[int, tuple[int, str]] = {}
    translated_characters = 0
    nodes, tables = [*tree.walk(root)], tables_of(root)
    if not has_metadata:
        refuse_metadata(tables, sql, parser.tokens)
    metadata = metadata_reads(root, tables, sql, parser.tokens)
    lookups = lookup_reads(tables, sql, parser.tokens)
    if any(map(replaced_table, tables)):
        _check_hidden(root, sql, parser.tokens)
    replaced.update(replaced_names(nodes, tables, parser.tokens))
    has_parameters = any(isinstance(node, tree.Parameter) for node in nodes)
    unnests = {id(one.call): one for one in nodes if isinstance(one, tree.TableFunction)}
    # From the end: a call within another one is translated before it.
    for node in reversed(nodes):
        if isinstance(node, tree.DataType):
            if node.name in _TEXT_TYPES and node.end == node.start + 1:
                replaced[node.start] = (node.end, "STRING")
        elif isinstance(node, tree.Call):
            if is_call(node):
                read = call_read(node, place(sql, parser.tokens[node.start].position))
                if not has_metadata:
                    raise refuse_lookup(read)
                lookups.setdefault(read)
                operands = [_operand(one, parser.tokens, replaced) for one in node.arguments]
                text = written_call(read, operands)
            else:
                text = _translated(node, parser.tokens, replaced, unnests.get(id(node)))
            if text:
                replaced[node.start] = (node.end, text)
                translated_characters += len(text)
                if translated_characters > _TRANSLATED_MAX:
                    raise _too_long(sql, parser.tokens[node.start].position, node.name[-1])
                if has_parameters:
                    _check_parameters(sql, parser.tokens, node, text)
            else:
                check_function(sql, parser.tokens, node)
    check_values(sql, parser.tokens, nodes, parameters)
    check_sizes(sql, parser.tokens, nodes)
    named = {
        table.parts[-1].lower()
        for table in tables
        if not is_lookup(table)
        and (len(table.parts) < 2 or table.parts[-2].lower() not in METADATA_SCHEMAS)
    }
    text = written(sql, parser.tokens, root, replaced)
    if replaced:
        parser, root = _parsed_again(text, parameters)
    is_translated = bool(translated_characters)
    return CheckedQuery(
        *(root, text, frozenset(named), parser.tokens, is_translated, metadata, tuple(lookups))
    )


def _check_parameters(sql: str, found: Sequence[Token], call: tree.Call, text: str) -> None:
    """Refuse a call whose translation has other parameters: Spark counts them by position."""
    given = sum(isinstance(node, tree.Parameter) for node in tree.walk(call))
    written_count = sum(token.text == "?" for token in each_token(text))
    if given and (given != written_count or (given > 1 and reorders(call))):
        raise InvalidRequest(
            f"? is not possible in {call.name[-1]:.60}, {place(sql, found[call.start].position)}:"
            " Spark SQL for it repeats its arguments, moves or leaves out some; write the value"
            " itself, or compute the parameter in a subquery"
        )


def _parsed_again(text: str, parameters: Sequence[object]) -> tuple[Parser, tree.Query]:
    """Return the parser and the tree of a text with replacements, and check it as the first."""
    try:
        check_variables(text)  # texts beside each other, such as '$' '{x}', may have become one
        parser = Parser(text)
        root = parser.whole(parser.query)
        nodes = [*tree.walk(root)]
        check_values(text, parser.tokens, nodes, parameters)
        check_sizes(text, parser.tokens, nodes)
        for node in nodes:  # a mistake in a translation passes no function that is not listed
            if isinstance(node, tree.Call):
                check_function(text, parser.tokens, node)
    except InvalidRequest as error:  # narrow: its columns are not those of the user's text
        raise InvalidRequest(f"after Druid's functions are written in Spark SQL, {error}") from None
    return parser, root


def _too_long(sql: str, position: int, name: str) -> InvalidRequest:
    return InvalidRequest(
        f"Druid's functions take more than {_TRANSLATED_MAX} characters in Spark SQL,"
        f" {place(sql, position)}, at {name:.60}: call fewer of them within each other, or compute"
        " some in a subquery"
    )


def _translated(
    call: tree.Call,
    tokens: Sequence[Token],
    replaced: Mapping[int, tuple[int, str]],
    relation: tree.TableFunction | None = None,
) -> str:
    """Return a call in Spark SQL if it is Druid's; `relation` if it returns rows in FROM."""
    if relation is not None and is_unnest(call):
        text = unnested(call, [_operand(one, tokens, replaced) for one in call.arguments])
        return text.removeprefix("LATERAL ") if relation.is_lateral else text
    if not is_translated(call):
        return ""
    texts = [_operand(one, tokens, replaced) for one in call.arguments]
    condition = "" if call.condition is None else one_line(tokens, call.condition, replaced)
    return translated(call, texts, condition)


def _operand(
    node: tree.Expression, tokens: Sequence[Token], replaced: Mapping[int, tuple[int, str]]
) -> str:
    text = one_line(tokens, node, replaced)
    own = (tree.Name, tree.Number, tree.Text, tree.Call, tree.Row, tree.Constant, tree.Parameter)
    return text if isinstance(node, own) else f"({text})"


def check_function(sql: str, tokens: Sequence[Token], call: tree.Call) -> None:
    """Refuse a call of a function that is not on the allow-list, or not with its arguments.

    Raises:
        InvalidRequest: It is refused; the message has its place.
    """
    check_call(sql, tokens, call)
    name = call.name[-1]
    if call.form in _DRUID_FORMS:
        raise InvalidRequest(
            f"{name:.60} in this form is not Spark SQL, {place(sql, tokens[call.start].position)}:"
            f" {form_hint(call)}"
        )
    if name.lower() in FUNCTIONS:
        return
    remedy = function_hint(name)
    if not remedy:
        near = most_similar(name, _SUGGESTED, resemblance=_SIMILAR_MIN)
        guess = "" if near is None else f"did you mean {near}? "
        remedy = f"{guess}The functions are listed at {FUNCTION_LIST}"
    raise InvalidRequest(
        f"Spark SQL has no function {name:.60}, {place(sql, tokens[call.start].position)}: {remedy}"
    )


def tables_of(root: tree.Node) -> list[tree.Table]:
    """Return the tables that a statement reads, each time it names one, in no order.

    A name that WITH defines is none, from its definition on; a name is compared without case, as
    Spark does. One that is qualified always is a table.
    """
    return [
        table
        for table, defined in _tables_in_scope(root)
        if len(table.parts) > 1 or defined is None or not defined.has(table.parts[0].lower())
    ]


def _check_hidden(root: tree.Node, sql: str, tokens: Sequence[Token]) -> None:
    """Refuse a table with a schema if WITH around it defines the name that Spark gets for it.

    Raises:
        InvalidRequest: Spark would read the rows of the definition instead of the table's.
    """
    for table, defined in _tables_in_scope(root):
        name = replaced_table(table)
        if name is not None and defined is not None and defined.has(name.lower()):
            shown = ".".join(table.parts)
            raise InvalidRequest(
                f"{shown:.120} is hidden by a definition of WITH,"
                f" {place(sql, tokens[table.start].position)}: Spark would read {name:.60} of WITH"
                " instead; use another name in WITH"
            )


def _tables_in_scope(root: tree.Node) -> Iterator[tuple[tree.Table, _Defined | None]]:
    """Yield the names of tables in a statement, in no order, and what WITH defines for each."""
    waiting: list[tuple[tree.Node, _Defined | None]] = [(root, None)]
    while waiting:
        node, defined = waiting.pop()
        if isinstance(node, tree.Query) and node.definitions:
            places: dict[str, int] = {}
            for at, one in enumerate(node.definitions):
                places.setdefault(one.name.lower(), at)
                waiting.append((one.query, _Defined(places, at + one.is_recursive, defined)))
            defined = _Defined(places, len(node.definitions), defined)
            below = (one for one in tree.children(node) if not isinstance(one, tree.Definition))
            waiting += [(one, defined) for one in below]
            continue
        if isinstance(node, tree.Table):
            yield node, defined
        waiting += [(one, defined) for one in tree.children(node)]


@dataclass(frozen=True, slots=True)
class _Defined:
    """The names that WITH defines for a part of a statement.

    The parts of one WITH share the places of its names: a set for each would take gigabytes.

    Attributes:
        places: The place of the first definition of each name.
        count: Number of the definitions that count here.
        outer: The names around this query.
    """

    places: Mapping[str, int]
    count: int
    outer: _Defined | None

    def has(self, name: str) -> bool:
        """Return whether a name is defined here."""
        scope: _Defined | None = self
        while scope is not None:
            if scope.places.get(name, scope.count) < scope.count:
                return True
            scope = scope.outer
        return False
