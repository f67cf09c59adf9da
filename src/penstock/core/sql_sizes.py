"""Size limits of statements, checked before Spark plans them. Pure.

Owns the limits, and counts sizes on the tokens of a statement. The counts are lower bounds: a
statement below every limit may still take too long, and then its time limit ends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NoReturn

from penstock.core.errors import InvalidRequest
from penstock.core.sql_text import Token, closing_parentheses, each_token, place

TEXT_MAX: Final = 1_000_000
TOKENS_MAX: Final = 100_000
NESTING_MAX: Final = 200
# Parentheses around queries: for each level, counting needs four nested calls.
QUERIES_MAX: Final = 150
IN_MAX: Final = 10_000
# Constants are looked up in a set; Spark compares and compiles each other element.
IN_COMPUTED_MAX: Final = 500
# Number of tables after each WITH name is replaced by its query, as Spark does.
TABLES_MAX: Final = 500
# Operators on one path from the top of an expression down. Spark's stack tolerates 400 consecutive
# `+`, or 500 NOT; it balances a chain of AND or OR.
DEPTH_MAX: Final = 300
# Spark's stack tolerates 500 consecutive set operators.
UNIONS_MAX: Final = 400
# Spark resolves one pipe in each of its 100 iterations.
PIPES_MAX: Final = 80
# Words of one query after each name is replaced by its expression. It is above `TOKENS_MAX`, so a
# query that uses each name once stays below it.
EXPANDED_MAX: Final = 150_000
# Maximum number of words that replacements add to one expression. When Spark moves a condition
# below projections, an expression of 16,000 words takes 9 s.
REPLACED_MAX: Final = 20_000
GROUPING_SETS_MAX: Final = 4_096

_OPENING: Final = frozenset({"(", "[", "{", "CASE"})
_CLOSING: Final = frozenset({")", "]", "}", "END"})
_BRACKETS: Final[Mapping[str, int]] = {
    **dict.fromkeys("([{", 1),
    **dict.fromkeys(")]}", -1),
}
_ENDS_TABLES: Final = frozenset(
    {"SELECT", "WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT"}
    | {
        "VALUES",
        "OFFSET",
        "WINDOW",
        "UNION",
        "EXCEPT",
        "INTERSECT",
        "MINUS",
        "ON",
        "USING",
        "QUALIFY",
    }
)
_BEGINS_TABLE: Final = frozenset({"FROM", "JOIN", "TABLE"})
_BEGINS_QUERY: Final = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "FROM"})
# Words between queries, or at the beginning of one.
_IN_QUERY: Final = frozenset({"SELECT", "UNION", "EXCEPT", "INTERSECT", "MINUS"})
_OF_CONSTANTS: Final = frozenset(
    {"+", "-", ".", ",", "?", "NULL", "TRUE", "FALSE", "DATE", "TIMESTAMP", "INTERVAL"}
)
_AS_TABLE_IN: Final = "join a lookup datasource instead, or split it into several queries"


def check_text(sql: str) -> None:
    """Refuse a statement whose text is too long to be split into tokens.

    Raises:
        InvalidRequest: It is too long.
    """
    if len(sql) > TEXT_MAX:
        raise InvalidRequest(
            f"the statement has {len(sql)} characters, over the limit of {TEXT_MAX}, because"
            f" parsing takes time and memory with its length: {_AS_TABLE_IN}"
        )


def statement_tokens(sql: str) -> list[Token]:
    """Split a statement into tokens, up to the first token over a limit.

    Other threads wait for most of the time that this takes, so refusing a statement must be cheap.

    Raises:
        InvalidRequest: It has too many tokens, or parentheses are nested too deeply; or a text, a
            name or a comment is not closed.
    """
    found: list[Token] = []
    depth = 0
    for token in each_token(sql):
        found.append(token)
        if token.text in _BRACKETS:
            depth = max(0, depth + _BRACKETS[token.text])
            if depth > NESTING_MAX:
                _check_nesting(sql, found)
        if len(found) > TOKENS_MAX:
            raise InvalidRequest(
                f"the statement has more than {TOKENS_MAX} words and signs, which is the"
                f" limit, because planning takes time and memory with each: {_AS_TABLE_IN}"
            )
    return found


def check_sizes(sql: str, found: Sequence[Token]) -> None:
    """Refuse a statement that would take too long in Spark's parser, analyzer or optimizer.

    `check_text` limits the length of the text: a statement that writes may contain the rows
    themselves. `statement_tokens` limits the number of tokens.

    Raises:
        InvalidRequest: A size is over its limit; the message names the place and the limit.
    """
    _check_nesting(sql, found)
    _check_lists(sql, found)
    _Tables(sql, found).check()
    _check_depth(sql, found)
    _check_groupings(sql, found)
    _Expressions(sql, found).check()


def _steps(found: Sequence[Token]) -> list[int]:
    """Return for each token how many levels it opens (above 0) or closes (below 0).

    An END without a CASE is a column name. A parenthesis also closes each CASE in it.
    """
    steps: list[int] = []
    cases = [0]  # number of open ones in each open parenthesis
    for token in found:
        step = 0
        if token.text == "CASE":
            step = 1
            cases[-1] += 1
        elif token.text == "END":
            step = -1 if cases[-1] else 0
            cases[-1] += step
        elif token.text in _OPENING:
            step = 1
            cases.append(0)
        elif token.text in _CLOSING and len(cases) > 1:
            step = -1 - cases.pop()
        steps.append(step)
    return steps


def _check_nesting(sql: str, found: Sequence[Token]) -> None:
    opened: list[bool] = []  # whether each open level is a query
    queries = 0
    for at, (token, step) in enumerate(zip(found, _steps(found), strict=True)):
        if step > 0:
            following = found[at + 1].text if at + 1 < len(found) else ""
            opened.append(token.text == "(" and following in _BEGINS_QUERY)
            queries += opened[-1]
        elif step < 0:
            queries -= sum(opened[step:])
            del opened[step:]
        if len(opened) > NESTING_MAX:
            what, most = token.text, NESTING_MAX
        elif queries > QUERIES_MAX:
            what, most = "a query", QUERIES_MAX
        else:
            continue
        raise InvalidRequest(
            f"{what} is nested deeper than {most} levels, {place(sql, token.position)}, and"
            " Spark's parser is recursive: divide the query with WITH, or remove parentheses"
        )


@dataclass(slots=True)
class _List:
    """The elements of one `IN (…)` so far; parentheses in it are part of an element."""

    elements: int = 1
    computed: int = 0
    is_computed: bool = False
    depth: int = 1


def _check_lists(sql: str, found: Sequence[Token]) -> None:
    """Count the elements of each `IN (…)`."""
    lists: list[_List] = []
    previous = ""
    for token, following in zip(found, [*found[1:], *found[-1:]], strict=True):
        current = lists[-1] if lists else None
        if token.text == "(" and previous == "IN" and following.text not in _BEGINS_QUERY:
            lists.append(_List())
        elif current is not None:
            _count_element(current, token)
            if not current.depth:
                lists.pop()
            elif current.elements > IN_MAX or current.computed > IN_COMPUTED_MAX:
                most, what = IN_MAX, ""
                if current.elements <= IN_MAX:
                    most, what = IN_COMPUTED_MAX, " that are not constants"
                raise InvalidRequest(
                    f"IN has more than {most} elements{what}, {place(sql, token.position)}, and"
                    f" Spark plans each of them: {_AS_TABLE_IN}"
                )
        previous = token.text


def _count_element(current: _List, token: Token) -> None:
    if token.text in {"(", "[", "{"}:
        current.depth += 1
    elif token.text in {")", "]", "}"}:
        current.depth -= 1
    elif token.text == "," and current.depth == 1:
        current.elements += 1
        current.is_computed = False
    elif not (token.is_text or token.raw[0].isdecimal() or token.text in _OF_CONSTANTS):
        current.computed += not current.is_computed
        current.is_computed = True


@dataclass(slots=True)
class _Level:
    """One open parenthesis.

    Attributes:
        defines: Name of WITH whose query it is, "" if none.
        tables: Number of tables below it so far, with WITH names replaced.
        in_tables: Whether a comma is followed by another table.
        expects_table: Whether a name here is that of a table.
        selects: Whether it contains a query; that of `EXTRACT(day FROM x)` does not.
    """

    defines: str = ""
    tables: int = 0
    in_tables: bool = False
    expects_table: bool = False
    selects: bool = False


class _Tables:
    """Counts the tables of a statement after each name of WITH is replaced by its query."""

    def __init__(self, sql: str, found: Sequence[Token]) -> None:
        self._sql = sql
        self._found = found
        self._levels = [_Level()]
        self._costs: dict[str, int] = {}
        self._definitions = _definitions(found)

    def check(self) -> None:
        """Count; raises as `check_sizes`."""
        for at, token in enumerate(self._found):
            level = self._levels[-1]
            if token.text == "(":
                self._open(at, level)
            elif token.text == ")":
                self._close()
            elif token.text in _BEGINS_TABLE:
                level.in_tables = level.expects_table = self._is_clause(at, level)
            elif token.text in _ENDS_TABLES:
                level.selects |= token.text in _IN_QUERY
                level.in_tables = level.expects_table = False
            elif token.text == ",":
                level.expects_table = level.in_tables
            elif level.expects_table and token.name and token.text != "LATERAL":
                level.expects_table = False
                self._count(token, level, self._costs.get(token.name.lower(), 1))

    def _is_clause(self, at: int, level: _Level) -> bool:
        if self._found[at].text != "FROM":
            return True
        is_first = at == 0 or self._found[at - 1].text == "("
        return level.selects or level.in_tables or is_first or len(self._levels) == 1

    def _open(self, at: int, level: _Level) -> None:
        expects = level.expects_table
        following = self._found[at + 1].text if at + 1 < len(self._found) else ""
        is_query = following in _BEGINS_QUERY
        inside = _Level(self._definitions.get(at, ""), 0, expects, expects, is_query)
        level.expects_table = False
        self._levels.append(inside)

    def _close(self) -> None:
        if len(self._levels) == 1:
            return  # a syntax error, which Spark reports
        closed = self._levels.pop()
        if closed.defines:
            # A nested query may define the same name: the larger one counts.
            known = self._costs.get(closed.defines, 1)
            self._costs[closed.defines] = max(closed.tables, known)
        else:
            self._levels[-1].tables += closed.tables

    def _count(self, token: Token, level: _Level, cost: int) -> None:
        level.tables += cost
        # In an open subquery, the tables before it count as well.
        total = 0
        for one in reversed(self._levels):
            total += one.tables
            if one.defines:
                break
        if total > TABLES_MAX:
            raise InvalidRequest(
                f"the query reads more than {TABLES_MAX} tables once each name of WITH is replaced"
                f" by its query, {place(self._sql, token.position)}: refer to each name less often,"
                " or store an intermediate result in a datasource"
            )


def _definitions(found: Sequence[Token]) -> Mapping[int, str]:
    """Return the names of WITH by the index of the parenthesis that opens the query of each.

    In Spark's grammar a definition is `name [(columns)] [MAX RECURSION LEVEL n] [AS] (query)`.
    """
    closing = closing_parentheses(found)
    names: dict[int, str] = {}

    def word(index: int) -> str:
        return found[index].text if index < len(found) else ""

    for start, token in enumerate(found):
        at = start + 1
        if token.text != "WITH" or at >= len(found):
            continue
        if word(at) == "RECURSIVE" and word(at + 1) not in {"(", "AS"}:
            at += 1
        while at < len(found) and found[at].name:
            name = found[at].name.lower()
            at += 1
            if word(at) == "(" and _are_columns(found, at + 1):
                at = closing.get(at, len(found)) + 1
            if word(at) == "MAX":
                at += len(("MAX", "RECURSION", "LEVEL", "10"))
            at += word(at) == "AS"
            if word(at) != "(":
                break
            names[at] = name
            at = closing.get(at, len(found)) + 1
            if word(at) != ",":
                break
            at += 1
    return names


def _are_columns(found: Sequence[Token], at: int) -> bool:
    """Return whether names separated by commas, and no query, precede a closing parenthesis."""
    while at + 1 < len(found) and found[at].name:
        if found[at + 1].text == ")":
            return True
        if found[at + 1].text != ",":
            return False
        at += 2
    return False


_INFIX: Final = frozenset("+-*/%|&^<>=!:~") | {"IS", "LIKE", "ILIKE", "RLIKE", "DIV", "COLLATE"}
_PREFIX: Final = frozenset({"+", "-", "~", "!", "NOT"})
_SECOND_MARKS: Final = frozenset("|=>:")
_SET_OPERATORS: Final = frozenset({"UNION", "EXCEPT", "INTERSECT", "MINUS"})
_BEGINS_EXPRESSION: Final = (
    _ENDS_TABLES
    | _BEGINS_TABLE
    | {",", "AND", "OR", "WHEN", "THEN", "ELSE", "BY", "BETWEEN", "IN", "AS", "|>", "EXTEND"}
)


@dataclass(slots=True)
class _Depth:
    """Depths of the expressions within one parenthesis.

    Attributes:
        most: Depth of the complete ones.
        spine: Depth before the last infix operator, including it.
        operand: Depth after it.
        unions: Number of set operators.
    """

    most: int = 0
    spine: int = 0
    operand: int = 0
    unions: int = 0

    def finish(self) -> int:
        """Begin another expression; return the maximum depth so far."""
        self.most = max(self.most, self.spine, self.operand)
        self.spine = self.operand = 0
        return self.most


def _check_depth(sql: str, found: Sequence[Token]) -> None:
    """Limit chains of operators, set operators and pipes, each of which is a level of a tree."""
    levels = [_Depth()]
    pipes = 0
    ends_operand = False
    for at, (token, step) in enumerate(zip(found, _steps(found), strict=True)):
        level = levels[-1]
        text = token.text
        is_second = text in _SECOND_MARKS and _is_joined(found, at)
        if is_second and text == ">" and found[at - 1].text == "|":
            pipes += 1
            level.finish()
        elif is_second:
            pass  # second character of `||`, `<=`, `::`
        elif step > 0:
            levels.append(_Depth())
        elif step < 0:
            for _ in range(-step):
                depth = levels.pop().finish()
                levels[-1].operand += depth + 1
        elif text in _BEGINS_EXPRESSION:
            level.finish()
            level.unions += text in _SET_OPERATORS
        elif text in _PREFIX and not ends_operand:
            level.operand += 1
        elif text in _INFIX:
            level.spine = max(level.spine, level.operand) + 1
            level.operand = 0
        elif text == "." and not found[at - 1].raw[0].isdecimal():
            level.operand += 1
        ends_operand = _ends_operand(token)
        _refuse_deep(sql, token, levels[-1], pipes)


def _refuse_deep(sql: str, token: Token, level: _Depth, pipes: int) -> None:
    if max(level.spine, level.operand) > DEPTH_MAX:
        what = f"an expression has more than {DEPTH_MAX} nested operators"
        remedy = (
            "compute parts of it in a subquery, or write it with functions such as"
            " aggregate(array(…), …), concat(…) or coalesce(…)"
        )
    elif level.unions > UNIONS_MAX:
        what = f"more than {UNIONS_MAX} consecutive set operators such as UNION"
        remedy = "put some of them into parentheses, or split it into several queries"
    elif pipes > PIPES_MAX:
        what = f"the statement has more than {PIPES_MAX} pipes |>"
        remedy = "do more in each, as in EXTEND a + 1 AS b, a + 2 AS c"
    else:
        return
    raise InvalidRequest(
        f"{what}, {place(sql, token.position)}, and Spark's planning is recursive: {remedy}"
    )


def _is_joined(found: Sequence[Token], at: int) -> bool:
    """Return whether a mark is the second or third character of one operator."""
    before = found[at - 1]
    return (
        at > 0 and before.text in _INFIX and before.position + len(before.raw) == found[at].position
    )


def _ends_operand(token: Token) -> bool:
    """Return whether an operator after the token is binary, not a prefix."""
    if token.text in {")", "]", "}", "END", "?"} or token.is_text:
        return True
    is_word = bool(token.name) and token.text not in _BEGINS_EXPRESSION
    return is_word and token.text not in _PREFIX and token.text not in _INFIX


def _check_groupings(sql: str, found: Sequence[Token]) -> None:
    """Limit the grouping sets of each GROUP BY: Spark copies each row for each of them."""
    closing = closing_parentheses(found)
    for start, (token, following) in enumerate(pairwise(found)):
        if (token.text, following.text) != ("GROUP", "BY"):
            continue
        total = elements = 1
        at = start + 2
        while at < len(found) and not _ends_grouping(found, at):
            text = found[at].text
            total *= _grouping_sets(found, at, closing)
            elements += text == ","
            if text in {"CUBE", "ROLLUP"} and found[at - 1].text == "WITH":
                total *= 2 ** min(elements, 64) if text == "CUBE" else elements + 1
            if total > GROUPING_SETS_MAX:
                raise InvalidRequest(
                    f"GROUP BY has more than {GROUPING_SETS_MAX} grouping sets,"
                    f" {place(sql, found[at].position)}, for each of which Spark copies each row:"
                    " name those that you need with GROUPING SETS, or group by fewer expressions"
                )
            at = closing.get(at, at) + 1


def _ends_grouping(found: Sequence[Token], at: int) -> bool:
    text = found[at].text
    is_pipe = text == ">" and found[at - 1].text == "|"
    return is_pipe or text in _SET_OPERATORS | {")", ";", "SELECT", "GROUP"}


def _grouping_sets(found: Sequence[Token], at: int, closing: Mapping[int, int]) -> int:
    """Return the number of grouping sets of CUBE, ROLLUP or GROUPING SETS, otherwise 1."""
    text = found[at].text
    opening = at + 2 if text == "GROUPING" else at + 1
    if text not in {"CUBE", "ROLLUP", "GROUPING"} or opening not in closing:
        return 1
    elements, sets = 1, 0
    inside = opening + 1
    while inside < closing[opening]:
        elements += found[inside].text == ","
        if text == "GROUPING" and found[inside - 1].text in {",", "("}:
            sets += _grouping_sets(found, inside, closing)
        inside = closing.get(inside, inside) + 1
    if text == "CUBE":
        return int(2 ** min(elements, 64))
    return elements + 1 if text == "ROLLUP" else max(sets, 1)


# Total number of columns taken from subqueries: bounds the work of counting.
_MERGED_MAX: Final = 2_000_000


@dataclass(slots=True)
class _Scope:
    """The columns of one query, with their number of words after names are replaced.

    Attributes:
        outer: Scope of the enclosing query.
        known: Number of words by name in lower case.
        total: Words of its expressions.
        largest: Words of the largest expression.
    """

    outer: _Scope | None = None
    known: dict[str, int] = field(default_factory=dict)
    total: int = 0
    largest: int = 1

    def word_count(self, name: str) -> int:
        """Return the number of words of a name's expression; 1 if it is not a known column."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.known:
                return scope.known[name]
            scope = scope.outer
        return 1

    def merge(self, other: _Scope) -> None:
        """Add the columns of a query that this one reads."""
        for name, words in other.known.items():
            self.known[name] = max(words, self.known.get(name, 1))
        self.largest = max(self.largest, other.largest)


class _Expressions:
    """Counts the words of expressions after each name is replaced by its expression.

    Spark does so when it merges the projections of subqueries, WITH, pipes and aliases that refer
    to others in the same list. Columns with the same name are not distinguished: the larger counts.
    """

    def __init__(self, sql: str, found: Sequence[Token]) -> None:
        self._sql = sql
        self._found = found
        self._closing = closing_parentheses(found)
        self._definitions = _definitions(found)
        self._with: dict[str, _Scope] = {}
        self._merged = 0

    def check(self) -> None:
        """Count; raises as `check_sizes`."""
        self._query(0, len(self._found), None)

    def _query(self, begin: int, end: int, outer: _Scope | None) -> _Scope:
        """Count a query: the parts between its set operators, each of which defines columns."""
        result = _Scope()
        part = _Scope(outer)
        first: _Scope | None = None
        start = begin
        for at in [*self._top(begin, end), end]:
            text = self._found[at].text if at < end else ""
            is_pipe = text == "|" and at + 1 < end and self._found[at + 1].text == ">"
            if text not in _SET_OPERATORS and not is_pipe and at < end:
                continue
            self._part(start, at, part)
            start = at + 1
            if is_pipe:
                self._merge(at, result, part)
            else:
                self._merge(start - 1, part, result)
                result.total += part.total
                if first is not None:
                    # A column of the first query corresponds to those of the others at its
                    # position.
                    result.known.update(dict.fromkeys(first.known, result.largest))
                first = first or part
                part = _Scope(outer)
        return result

    def _top(self, begin: int, end: int) -> Iterator[int]:
        """Yield the indexes of tokens outside of nested parentheses."""
        at = begin
        while at < end:
            yield at
            at = min(self._closing.get(at, at), end - 1) + 1

    def _part(self, begin: int, end: int, scope: _Scope) -> None:
        """Count a query without set operators, or its part up to a pipe."""
        select = source = None
        for at in self._top(begin, end):
            text = self._found[at].text
            if text == "SELECT" and select is None:
                select = at
            elif text == "FROM" and source is None and self._found[at - 1].text != "DISTINCT":
                source = at
        if select is None:
            if begin < end and self._found[begin].text == ">":
                self._columns(begin + 1, end, scope)
            else:
                self._tables(begin, end, scope)
        elif source is None or source < select:
            self._tables(begin, select, scope)
            self._columns(select, end, scope)
        else:
            # The columns of the tables must be known before the columns computed from them.
            self._tables(begin, select, scope)
            self._tables(source, end, scope)
            self._columns(select, source, scope)

    def _tables(self, begin: int, end: int, scope: _Scope) -> None:
        """Count parts that define no columns of their own: WITH, and FROM to ORDER BY."""
        start = begin
        words = 0
        for at in self._top(begin, end):
            token = self._found[at]
            if token.text == ",":
                start = at + 1
            words += self._words(at, start, scope, in_tables=True)
        self._add(begin, end, words, scope)

    def _columns(self, begin: int, end: int, scope: _Scope) -> None:
        """Count the columns that a SELECT, EXTEND, SET or AGGREGATE defines."""
        # Other pipes, such as JOIN, read tables.
        if begin >= end:
            return
        in_tables = self._found[begin].text not in {"SELECT", "EXTEND", "SET", "AGGREGATE"}
        start = begin + 1
        words = 0
        for at in self._top(begin + 1, end):
            if self._found[at].text in {",", "GROUP"}:
                self._define(start, at, words, scope)
                start, words = at + 1, 0
            else:
                words += self._words(at, start, scope, in_tables=in_tables)
        self._define(start, end, words, scope)

    def _words(self, at: int, start: int, scope: _Scope, *, in_tables: bool) -> int:
        """Return the words of a token, or of the parentheses that it opens.

        The columns of a query in parentheses are added to the known ones.
        """
        if self._found[at].text != "(":
            return self._named(at, scope, in_tables=in_tables)
        end = self._closing.get(at)
        if end is None:
            return 0  # a syntax error, which Spark reports
        begin = at + 1
        if self._found[begin].text in _BEGINS_QUERY:
            inside = self._query(begin, end, scope if scope.known else scope.outer)
            if at in self._definitions:
                self._define_with(start, at, inside)
                return 0
            self._merge(at, inside, scope)
            self._rename(end + 1, scope)
            return 0 if in_tables else inside.total
        words = 0
        for inner in self._top(begin, end):
            words += self._words(inner, start, scope, in_tables=in_tables)
        if in_tables:
            self._rename(end + 1, scope)
        return words

    def _named(self, at: int, scope: _Scope, *, in_tables: bool) -> int:
        """Return the number of words of a name's expression; 1 for text."""
        token = self._found[at]
        if not token.name:
            return int(token.is_text)
        name = token.name.lower()
        if in_tables and name in self._with:
            self._merge(at, self._with[name], scope)
            self._rename(at + 1, scope)
        return scope.word_count(name)

    def _define_with(self, start: int, opening: int, inside: _Scope) -> None:
        """Record the columns of a query of WITH."""
        self._name_columns(start, opening, inside)
        name = self._definitions[opening]
        if name in self._with:
            self._merge(opening, self._with[name], inside)
        self._with[name] = inside

    def _rename(self, at: int, scope: _Scope) -> None:
        """Record the columns of `… AS name (columns)`."""
        at += at < len(self._found) and self._found[at].text == "AS"
        if at + 1 >= len(self._found) or self._found[at + 1].text != "(":
            return
        if self._found[at].name and _are_columns(self._found, at + 2):
            self._name_columns(at, self._closing[at + 1], scope)

    def _name_columns(self, begin: int, end: int, scope: _Scope) -> None:
        """Record the columns of `name (columns)`, each as large as the largest known one."""
        for before, token in pairwise(self._found[begin:end]):
            if token.name and before.text in {"(", ","}:
                scope.known[token.name.lower()] = scope.largest

    def _define(self, begin: int, end: int, words: int, scope: _Scope) -> None:
        """Record the column that an expression defines, if it has a name."""
        if begin >= end:
            return
        last = self._found[end - 1]
        before = self._found[end - 2] if end - begin > 1 else None
        name = last.name.lower() if last.text != "END" else ""
        if name and before is not None and before.text == "AS":
            words -= scope.word_count(name)
        elif name and before is not None and _ends_operand(before):
            # `a b` defines b; `DISTINCT a` refers to it.
            words = max(words - scope.word_count(name), scope.word_count(name))
        elif before is not None and before.text != ".":
            name = ""
        self._add(begin, end, words, scope)
        if name:
            scope.known[name] = words
        if end - begin > 1 and self._found[begin + 1].text == "=":
            scope.known[self._found[begin].name.lower()] = words  # of SET

    def _add(self, begin: int, end: int, words: int, scope: _Scope) -> None:
        scope.total += words
        scope.largest = max(scope.largest, words)
        if words - (end - begin) > REPLACED_MAX:
            self._refuse(begin, "an expression", REPLACED_MAX)
        if scope.total > EXPANDED_MAX:
            self._refuse(begin, "a query", EXPANDED_MAX)

    def _merge(self, at: int, query: _Scope, scope: _Scope) -> None:
        """Add the columns of a query that another one reads."""
        self._merged += len(query.known)
        if self._merged > _MERGED_MAX:
            self._refuse(at, "a query", _MERGED_MAX)
        scope.merge(query)

    def _refuse(self, at: int, what: str, most: int) -> NoReturn:
        position = self._found[min(at, len(self._found) - 1)].position
        raise InvalidRequest(
            f"{what} has more than {most} words after each alias is replaced by its expression,"
            f" {place(self._sql, position)}, as Spark does when it merges projections: refer to"
            " each alias less often, or store an intermediate result in a datasource"
        )
