"""The syntax tree of a statement: one class for each kind of node. Pure.

A node has the range of its tokens, so that errors name its place and the writer can repeat it as it
was written. The parser makes no other nodes, so a statement has only parts that are listed here.
Chains of operators of the same precedence are one node with many operands, because a statement may
have thousands of them.

Terms follow Spark's grammar (SqlBaseParser.g4 of Spark 4.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Final

# Names of the fields by class that may have nodes: `fields` would find them out again for each of
# 100,000 nodes.
_FIELDS: Final[dict[type[object], tuple[str, ...]]] = {}
_PLAIN: Final = frozenset({"int", "str", "bool", "str | None", "tuple[str, ...]"})


@dataclass(slots=True, kw_only=True)
class Node:
    """A part of a statement: its tokens from `start` up to `end`, which equality ignores."""

    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)


def children(node: Node) -> Iterator[Node]:
    """Yield the nodes directly below a node, in the order of their fields."""
    yield from _children(node)


def _children(node: Node) -> list[Node]:
    kind = type(node)
    names = _FIELDS.get(kind)
    if names is None:
        # Types are texts here, as annotations are not evaluated.
        of_nodes = (one.name for one in fields(node) if one.type not in _PLAIN)
        names = _FIELDS[kind] = tuple(of_nodes)
    found: list[Node] = []
    for name in names:
        value = getattr(node, name)
        if isinstance(value, tuple):
            found.extend(value)
        elif value is not None:
            found.append(value)
    return found


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes below it, each before those below it."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        below = _children(one)
        below.reverse()
        waiting += below


# Expressions


@dataclass(slots=True, kw_only=True)
class Expression(Node):
    """A value for each row, or an aggregate of rows."""


@dataclass(slots=True, kw_only=True)
class Number(Expression):
    """A number as written, with its suffix: `1`, `0.5D`, `2L`."""

    text: str


@dataclass(slots=True, kw_only=True)
class Text(Expression):
    """One or several adjacent texts, which Spark joins; `value` is None if it has escapes.

    `quoted` is the value of one text whose escapes are doubled quotes only, and empty for others.
    """

    value: str | None
    quoted: str = ""


@dataclass(slots=True, kw_only=True)
class Constant(Expression):
    """`NULL`, `TRUE` or `FALSE`, in upper case."""

    word: str


@dataclass(slots=True, kw_only=True)
class TypedText(Expression):
    """A text with its type before it: `DATE '2026-01-01'`, `X'1F'`."""

    type: str
    text: Text


@dataclass(slots=True, kw_only=True)
class Interval(Expression):
    """`INTERVAL 1 DAY 2 HOURS`, `INTERVAL '1-2' YEAR TO MONTH`, or `INTERVAL '1 day'`.

    `units` are the units in upper case, one for each value; `to` is the second unit of a range.
    """

    values: tuple[Expression, ...]
    units: tuple[str, ...]
    to: str = ""


@dataclass(slots=True, kw_only=True)
class Parameter(Expression):
    """A `?`, whose number among all of them counts from 0."""

    number: int


@dataclass(slots=True, kw_only=True)
class Name(Expression):
    """A column, a field of one, or a variable of a lambda: its parts without quotes."""

    parts: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Star(Expression):
    """`*` or `t.*`, without the columns of EXCEPT."""

    qualifier: tuple[str, ...] = ()
    without: tuple[Name, ...] = ()


@dataclass(slots=True, kw_only=True)
class Call(Expression):
    """A call of a function; `name` has its parts as written, without quotes.

    `form`: for functions with a grammar of their own, the words between their arguments in upper
    case, such as `("FROM",)` of EXTRACT; the unit of EXTRACT is the first argument, a `Name`.
    Druid's `ARRAY[a, b]` has the form `("[",)`, and `returned` is the type after its RETURNING.
    """

    name: tuple[str, ...]
    arguments: tuple[Expression, ...] = ()
    is_distinct: bool = False
    form: tuple[str, ...] = ()
    within: tuple[SortItem, ...] = ()
    condition: Expression | None = None
    nulls: str = ""
    over: Window | Name | None = None
    returned: DataType | None = None


@dataclass(slots=True, kw_only=True)
class Named(Expression):
    """An argument with its name: `seed => 1`."""

    name: str
    value: Expression


@dataclass(slots=True, kw_only=True)
class Cast(Expression):
    """`CAST(a AS INT)`, `TRY_CAST(a AS INT)` or `a::INT`."""

    value: Expression
    type: DataType
    is_try: bool = False


@dataclass(slots=True, kw_only=True)
class Case(Expression):
    """`CASE [operand] WHEN … THEN … [ELSE …] END`; each branch is a condition and a result."""

    operand: Expression | None
    branches: tuple[Expression, ...]
    otherwise: Expression | None


@dataclass(slots=True, kw_only=True)
class Unary(Expression):
    """`-a`, `+a`, `~a`, `NOT a`, `!a`; the operator `!` is NOT."""

    operator: str
    operand: Expression


@dataclass(slots=True, kw_only=True)
class Operation(Expression):
    """Operands with an operator between each two: `a + b - c`, `a AND b AND c`.

    All operators have the same precedence, and the leftmost is applied first.
    """

    operators: tuple[str, ...]
    operands: tuple[Expression, ...]


@dataclass(slots=True, kw_only=True)
class Predicate(Expression):
    """A condition whose first operand stands before a word: BETWEEN, IN, LIKE, IS.

    `operator` in upper case: `BETWEEN`, `IN`, `LIKE`, `ILIKE`, `RLIKE`, `IS NULL`, `IS TRUE`,
    `IS FALSE`, `IS UNKNOWN`, `IS DISTINCT FROM`, `LIKE ANY`, `LIKE ALL`, `LIKE SOME` …; `escape` is
    the text after ESCAPE.
    """

    operator: str
    operand: Expression
    others: tuple[Expression, ...] = ()
    is_negated: bool = False
    escape: Text | None = None


@dataclass(slots=True, kw_only=True)
class Exists(Expression):
    """`EXISTS (query)`."""

    query: Query


@dataclass(slots=True, kw_only=True)
class Subquery(Expression):
    """A query in parentheses as a value, or as the list of IN."""

    query: Query


@dataclass(slots=True, kw_only=True)
class Row(Expression):
    """Expressions in parentheses: one keeps its value, several are a struct."""

    items: tuple[Expression, ...]


@dataclass(slots=True, kw_only=True)
class Aliased(Expression):
    """An expression with a name, or with several in parentheses for a generator (`is_list`)."""

    value: Expression
    names: tuple[str, ...]
    is_list: bool = False


@dataclass(slots=True, kw_only=True)
class Lambda(Expression):
    """`x -> …` or `(x, y) -> …`."""

    parameters: tuple[str, ...]
    body: Expression


@dataclass(slots=True, kw_only=True)
class Subscript(Expression):
    """`a[0]`."""

    value: Expression
    index: Expression


@dataclass(slots=True, kw_only=True)
class Field(Expression):
    """`(a).b`: a field of a value that is not a name."""

    value: Expression
    name: str


@dataclass(slots=True, kw_only=True)
class Collated(Expression):
    """`a COLLATE name`."""

    value: Expression
    collation: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class AtZone(Expression):
    """`a AT TIME ZONE 'UTC'`."""

    value: Expression
    zone: Expression


@dataclass(slots=True, kw_only=True)
class DataType(Node):
    """A type: its name in upper case, with the types within it, or its sizes as written."""

    name: str
    inner: tuple[DataType, ...] = ()
    fields: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class SortItem(Node):
    """An expression of ORDER BY; `direction` and `nulls` are empty if they are not written."""

    value: Expression
    direction: str = ""
    nulls: str = ""


@dataclass(slots=True, kw_only=True)
class Window(Node):
    """`(PARTITION BY … ORDER BY … ROWS BETWEEN … AND …)`, or the name of one in parentheses."""

    name: str = ""
    partition: tuple[Expression, ...] = ()
    order: tuple[SortItem, ...] = ()
    frame: Frame | None = None


@dataclass(slots=True, kw_only=True)
class Frame(Node):
    """The rows around a row: `unit` is ROWS or RANGE; bounds as `UNBOUNDED PRECEDING`."""

    unit: str
    bounds: tuple[str, ...]
    offsets: tuple[Expression, ...] = ()


# Relations


@dataclass(slots=True, kw_only=True)
class Relation(Node):
    """Rows in FROM; `alias` and `columns` are the names that it gets there."""

    alias: str = ""
    columns: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Table(Relation):
    """A relation by its name."""

    parts: tuple[str, ...]
    sample: Sample | None = None


@dataclass(slots=True, kw_only=True)
class Derived(Relation):
    """A query in parentheses."""

    query: Query
    is_lateral: bool = False
    sample: Sample | None = None


@dataclass(slots=True, kw_only=True)
class Grouped(Relation):
    """Relations in parentheses."""

    relation: Relation
    sample: Sample | None = None


@dataclass(slots=True, kw_only=True)
class InlineTable(Relation):
    """`VALUES (1, 'a'), (2, 'b')`."""

    rows: tuple[Expression, ...]


@dataclass(slots=True, kw_only=True)
class TableFunction(Relation):
    """A call that returns rows: `range(10)`, `explode(a)`."""

    call: Call
    is_lateral: bool = False


@dataclass(slots=True, kw_only=True)
class Join(Relation):
    """Two relations; `kind` is in upper case, such as `LEFT OUTER`, or `,` for a comma."""

    left: Relation
    right: Relation
    kind: str
    condition: Expression | None = None
    using: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class LateralView(Relation):
    """`relation LATERAL VIEW [OUTER] explode(a) t AS b`."""

    relation: Relation
    call: Call
    is_outer: bool = False


@dataclass(slots=True, kw_only=True)
class Pivot(Relation):
    """`relation PIVOT (aggregates FOR columns IN (values))`."""

    relation: Relation
    aggregates: tuple[Expression, ...]
    by: tuple[Name, ...]
    values: tuple[Expression, ...]


@dataclass(slots=True, kw_only=True)
class Unpivot(Relation):
    """`relation UNPIVOT (value FOR name IN (columns))`."""

    relation: Relation
    names: tuple[Name, ...]
    values: tuple[Expression, ...]
    nulls: str = ""


@dataclass(slots=True, kw_only=True)
class Input(Relation):
    """The rows before a pipe, which have no text of their own."""

    sample: Sample | None = None


@dataclass(slots=True, kw_only=True)
class Clause(Node):
    """One clause after a pipe that is not an expression: LIMIT or OFFSET with its value."""

    word: str
    value: Expression


@dataclass(slots=True, kw_only=True)
class Sample(Node):
    """`TABLESAMPLE (10 PERCENT) REPEATABLE (1)`."""

    size: tuple[Expression, ...]
    unit: str


# Queries


@dataclass(slots=True, kw_only=True)
class Query(Node):
    """Rows: the definitions of WITH, a body, and the clauses that order and limit it."""

    definitions: tuple[Definition, ...] = ()
    body: Body
    sorts: tuple[Sort, ...] = ()
    windows: tuple[NamedWindow, ...] = ()
    limit: Expression | None = None
    offset: Expression | None = None


@dataclass(slots=True, kw_only=True)
class Definition(Node):
    """`name (columns) AS (query)` of WITH; `level` is the number of MAX RECURSION LEVEL."""

    name: str
    columns: tuple[str, ...] = ()
    query: Query
    is_recursive: bool = False
    level: str = ""


@dataclass(slots=True, kw_only=True)
class Sort(Node):
    """One clause that orders or distributes rows."""

    kind: str
    items: tuple[SortItem, ...]


@dataclass(slots=True, kw_only=True)
class NamedWindow(Node):
    """`WINDOW w AS (…)`."""

    name: str
    window: Window | Name


@dataclass(slots=True, kw_only=True)
class Body(Node):
    """The rows of a query before they are ordered and limited."""


@dataclass(slots=True, kw_only=True)
class Select(Body):
    """One SELECT."""

    hints: tuple[Hint, ...] = ()
    is_distinct: bool = False
    items: tuple[Expression, ...]
    source: Relation | None = None
    where: Expression | None = None
    groups: GroupBy | None = None
    having: Expression | None = None
    qualify: Expression | None = None
    windows: tuple[NamedWindow, ...] = ()


@dataclass(slots=True, kw_only=True)
class Hint(Node):
    """A hint for the planner: `BROADCAST(t)`."""

    name: str
    arguments: tuple[Expression, ...] = ()


@dataclass(slots=True, kw_only=True)
class GroupBy(Node):
    """`GROUP BY`, with `ROLLUP`, `CUBE` and `GROUPING SETS` as items; `is_all`: GROUP BY ALL.

    `sets`: in the form `GROUP BY a, b GROUPING SETS (a, b)`, which groups by the sets alone.
    """

    items: tuple[Node, ...] = ()
    is_all: bool = False
    sets: GroupingSets | None = None


@dataclass(slots=True, kw_only=True)
class GroupingSets(Node):
    """`ROLLUP (…)`, `CUBE (…)` or `GROUPING SETS (…)`; each set is a `Row`, or one expression."""

    kind: str
    sets: tuple[Node, ...]


@dataclass(slots=True, kw_only=True)
class SetOperation(Body):
    """Bodies with UNION, EXCEPT, MINUS or INTERSECT between each two, from the left."""

    operators: tuple[str, ...]
    operands: tuple[Body, ...]


@dataclass(slots=True, kw_only=True)
class Values(Body):
    """`VALUES (1), (2)` as a query."""

    table: InlineTable


@dataclass(slots=True, kw_only=True)
class WholeTable(Body):
    """`TABLE name` as a query."""

    table: Table


@dataclass(slots=True, kw_only=True)
class Nested(Body):
    """A query in parentheses."""

    query: Query


@dataclass(slots=True, kw_only=True)
class Pipe(Body):
    """Rows of a body after one operator: `body |> WHERE a > 1`.

    `operator` is its first word. `parts` are its expressions, clauses or the operands of a set
    operator; `names` those of DROP and AS; `groups` that of AGGREGATE. A relation of PIVOT,
    UNPIVOT or a join begins with `Input`.
    """

    source: Body
    operator: str
    parts: tuple[Node, ...] = ()
    names: tuple[str, ...] = ()
    groups: GroupBy | None = None
