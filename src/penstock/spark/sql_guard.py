"""Guard of SQL queries: checks Spark's analyzed plan before a query runs.

`statement` checks text, which Spark may interpret differently. So Spark gets a query in
parentheses, where its grammar has no commands, and is first asked for the plan of the query over
the outlines: empty views with the names and columns of the real ones. Every node of that plan must
be on an allow-list. No job runs for this plan: it has a limit of 0. The limit does not reach into
subqueries, so three rules of Spark's optimizer that call functions over constants are off
(`GUARD_CONF`, `constants_kept`). Spark still evaluates some constants. Its analyzer needs rows of
VALUES, LIMIT, OFFSET, the sizes of TABLESAMPLE, the arguments of `range`, values of PIVOT, and
arguments that must be constant. Two rules of its optimizer cannot be turned off: they evaluate
texts that are cast to a date or timestamp, before the limit is applied, and the results of
correlated subqueries over no rows. There the check of the text stands alone (decision 37).

The real views have names that cannot be guessed. A query reaches them by common table expressions,
which the service writes around it, so no other statement can redefine the tables that it reads.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from penstock.core.errors import InvalidRequest
from penstock.core.sql.call_check import REFUSED_FUNCTIONS, SCHEMA_READERS
from penstock.spark.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTLINE_CONF: Final[Mapping[str, str]] = {
    # Otherwise Spark truncates lists in a plan, and the omitted part cannot be checked.
    "spark.sql.debug.maxToStringFields": "1000000",
    "spark.sql.maxPlanStringLength": str(16 << 20),
}
"""Settings of a Spark session that returns plans to check."""

_RULES_OFF: Final = "spark.sql.optimizer.excludedRules"
_FOLDING_RULES: Final = ",".join(
    f"org.apache.spark.sql.catalyst.optimizer.{rule}"
    for rule in ("ConstantFolding", "ConvertToLocalRelation", "EliminateOuterJoin")
)

GUARD_CONF: Final[Mapping[str, str]] = {**OUTLINE_CONF, _RULES_OFF: _FOLDING_RULES}
"""Settings of a Spark session that only returns plans to check and runs no query."""

_NODES: Final = frozenset(
    # sources of rows: Penstock's views, and rows written in the query
    {"View", "SubqueryAlias", "LocalRelation", "OneRowRelation", "Range", "ResolvedInlineTable"}
    # common table expressions
    | {"WithCTE", "CTERelationDef", "CTERelationRef", "UnionLoop", "UnionLoopRef"}
    # operators
    | {"Project", "Filter", "Aggregate", "Sort", "Distinct", "Deduplicate", "Sample", "Expand"}
    | {"GlobalLimit", "LocalLimit", "Limit", "Offset", "Tail", "Window", "Generate", "Pivot"}
    | {"Unpivot", "Join", "LateralJoin", "AsOfJoin", "NearestByJoin"}
    | {"Union", "Intersect", "Except"}
    | {"ResolvedHint", "Repartition", "RepartitionByExpression", "RebalancePartitions"}
)
# Nodes that Penstock itself puts below an expression of a spec.
_OWN_NODES: Final = _NODES | {"MapInArrow", "LogicalRDD", "Relation", "CollectMetrics"}
# A node other than the first stands behind a branch; all other lines continue a text.
_BRANCH: Final = re.compile(r"[ :]*[+:]- (?P<rest>.*)")
_NODE: Final = re.compile(r"[A-Za-z]+")
_ANALYZED: Final = "== Analyzed Logical Plan ==\n"
_OPTIMIZED: Final = "\n== Optimized Logical Plan ==\n"
_PHYSICAL: Final = "\n== Physical Plan ==\n"
_ROOT: Final = "\nGlobalLimit 0\n+- LocalLimit 0\n"
_CUT: Final = re.compile(r"\.\.\. \d+ more (?:characters|fields)|Truncated plan|\.\.\. \d+ lines")
# Texts that a plan, in lower case, must not contain; Spark ignores the case of functions. The last
# one is the option of XML that names a file or URL.
_FORBIDDEN: Final = (*(f"{name}(" for name in sorted(REFUSED_FUNCTIONS)), "rowvalidationxsdpath")
# How the printed name of a user-defined type ends, in lower case.
_USER_TYPES: Final = ("userdefinedtype@", "udt@")
_READERS: Final = tuple(f"{name}(" for name in sorted(SCHEMA_READERS))
_DEFAULTS: Final = ("exists_default", "current_default")
_ESCAPE: Final = re.compile(r"\\u([0-9a-f]{4})")
# The note of a place, as Spark writes it: `pos` is from 0, and `position`, which it writes for
# failed computations, from 1. A plan may follow the first form, and the text the second one.
_NOTE: Final = re.compile(
    r"(?P<begin>; | ?\(|(?:\A|\n)== SQL \()"
    r"line (?P<line>\d+),? (?P<unit>pos(?:ition)?) (?P<column>\d+)"
    r"(?P<end>(?=;?\Z|;\n['!]?[A-Z])|\)(?=\Z|\n\n== SQL ==\n)|\) ==(?=\n|\Z))"
)
# The code of the error, which older versions of Spark do not write, ends the message itself.
_CODE: Final = "SQLSTATE: "
_NOTE_AFTER_CODE: Final = re.compile(rf"(?<={_CODE}\w{{5}}){_NOTE.pattern}")
_CODE_AT_END: Final = re.compile(rf"{_CODE}\w{{5}}\Z")
_RELOCATED: Final = re.compile(  # as `relocated_error` writes it
    r"(?:; |\(|\n== SQL \()(line \d+, column \d+)(?=;?\Z|;\n['!]?[A-Z]|\)\Z|\)\n\n== SQL|\) ==\n)"
)
_SHOWN_BEGIN: Final = "\n\n== SQL ==\n"
_SHOWN_END: Final = re.compile(r"\n\)(\n-*\^\^\^)?\s*\Z")
_PARSE_MARK: Final = re.compile(r"-*\^\^\^\s*")
_MARK: Final = re.compile(r" *\^*\s*")
_LOCATION: Final = re.compile(r"(Location: )[^\n]*?(?=, (?:PartitionFilters|ReadSchema)\b|\n|\Z)")
# The scheme has a bound: without it, the search takes minutes in a long text such as `a.a.a.a…`.
_PATH: Final = re.compile(r"\b[a-z][a-z0-9+.-]{0,30}:/[^\s,\])]*")


def hidden_query(
    query: str, hidden: Mapping[str, str], limited: Mapping[str, str] | None = None
) -> str:
    """Return the query with the views defined under the names that it uses.

    The user's text begins on line 2; `relocated_error` corrects line numbers.

    Args:
        query: The query, as parsed by `read_statement`.
        hidden: The names of views by the names that the query uses.
        limited: SQL of tables, on one line, that stand in the place of some of these views, or have
            no view.
    """
    if not hidden and not limited:
        return f"(\n{query}\n)"
    tables = {name: f"TABLE {quoted(own)}" for name, own in hidden.items()}
    tables |= limited or {}
    views = ", ".join(f"{quoted(name)} AS ({text})" for name, text in tables.items())
    return f"(WITH {views} (\n{query}\n))"


def relation(
    spark: SparkSession,
    query: str,
    parameters: Sequence[object] = (),
    hidden: Mapping[str, str] | None = None,
    limited: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows of a query that was checked."""
    text = hidden_query(query, hidden or {}, limited)
    if not hasattr(spark, "client"):
        return spark.sql(text, args=list(parameters) or None)
    # Imported here, like all of PySpark: see `connect.spark_sessions`.
    from pyspark.sql import functions as sf  # noqa: PLC0415
    from pyspark.sql.connect.dataframe import DataFrame as Connected  # noqa: PLC0415
    from pyspark.sql.connect.plan import SQL  # noqa: PLC0415

    # Unlike `spark.sql`, this does not make Spark run the text as a command first. PySpark's type
    # hints do not distinguish the two kinds of session and DataFrame.
    plan = SQL(text, [sf.lit(value) for value in parameters])
    return Connected(plan, spark)  # type: ignore[arg-type]


class _Checks:
    """Checks under way in a session that also runs queries.

    The mutex is held for a call to Spark, so that the setting and the count agree. It belongs to
    one session: a Spark that does not answer must not delay the checks of others.
    """

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.count = 0


_checks: Final[WeakKeyDictionary[object, _Checks]] = WeakKeyDictionary()
_checks_mutex: Final = threading.Lock()


@contextmanager
def constants_kept(spark: SparkSession) -> Iterator[None]:
    """Have Spark call no functions over constants for plans, in a session that also runs queries.

    Queries that begin meanwhile have the same rows: Spark only evaluates their constants later.
    """
    with _checks_mutex:
        checks = _checks.setdefault(spark, _Checks())
    with checks.mutex:
        if not checks.count:
            spark.conf.set(_RULES_OFF, _FOLDING_RULES)
        checks.count += 1
    try:
        yield
    finally:
        with checks.mutex:
            checks.count -= 1
            if not checks.count:
                spark.conf.unset(_RULES_OFF)


def check_understood(
    spark: SparkSession,
    query: str,
    parameters: Sequence[object] = (),
    outlines: Mapping[str, str] | None = None,
) -> None:
    """Refuse a query whose plan does more than read known views.

    Args:
        spark: A Spark session with outlines of the views, and with `GUARD_CONF` or within
            `constants_kept`.
        query: The query.
        parameters: Its parameters.
        outlines: SQL of outlines, on one line, of further tables.

    Raises:
        InvalidRequest: It is refused.
    """
    check_plan(plan_text(relation(spark, query, parameters, None, outlines).limit(0)))


def check_expressions(rows: DataFrame) -> None:
    """Refuse rows whose plan, with expressions of a spec, has nodes that are not Penstock's.

    Args:
        rows: Rows of a Spark session with `GUARD_CONF` or within `constants_kept`.

    Raises:
        InvalidRequest: The plan has another node.
    """
    check_plan(plan_text(rows.limit(0)), _OWN_NODES)


def check_plan(text: str, allowed: frozenset[str] = _NODES) -> None:
    """Refuse a plan that is truncated, or has a node that is not allowed.

    Args:
        text: Spark's extended explanation of a query with a limit of 0.
        allowed: Names of nodes.

    Raises:
        InvalidRequest: The plan is refused.
    """
    if cut := _CUT.search(text):
        raise InvalidRequest(
            f"Spark's plan of the statement is too long to be checked ({cut.group()}): make the"
            " statement shorter"
        )
    # A text in the statement may look like a title: use the first and the last title.
    begin, end = text.find(_ANALYZED), text.rfind(_OPTIMIZED)
    plan = text[begin:end]
    if not 0 <= begin < end or _ROOT not in plan or _PHYSICAL not in text[end:]:
        raise InvalidRequest(
            "Spark's plan of the statement cannot be checked: write the statement in another way"
        )
    for line in plan.split("\n"):
        branch = _BRANCH.match(line)
        if branch is None:
            continue
        node = _NODE.match(branch["rest"])
        name = node.group() if node else branch["rest"]
        if name not in allowed:
            raise InvalidRequest(
                f"the statement is refused because its plan contains {name:.60}: a query may read "
                "only datasources, VALUES and range(), cannot run scripts or commands, and no "
                "line of its string literals may begin with +- or :-"
            )
    if call := _forbidden_call(plan):
        raise InvalidRequest(
            f"the statement is refused because its plan contains {call}, which is not allowed; if "
            "it is part of a string literal, build the literal with concat"
        )
    if part := _schema_part(text[:end], plan):
        raise InvalidRequest(
            f"the statement is refused because its plan contains {part}, and a schema must have no"
            " default values and no user-defined types: write schemas such as 'a INT, b STRING'; if"
            " it is part of a string literal, build the literal with concat"
        )


def _schema_part(text: str, plan: str) -> str:
    """Return a part of a schema that is not allowed; empty if there is none.

    Spark's analyzed plan shows types, but no default values. Those are visible before the analysis,
    where schemas are the texts of the statement, unless a function computes them.

    Args:
        text: The explanation up to the end of the analyzed plan.
        plan: The analyzed plan.
    """
    lowered = plan.lower()
    if not any(one in lowered for one in _READERS):
        return ""
    if found := next((one for one in _USER_TYPES if one in lowered), ""):
        return found
    shown = _ESCAPE.sub(lambda code: chr(int(code[1], 16)).lower(), text.lower())
    return next((one for one in _DEFAULTS if one in shown), "")


def _forbidden_call(plan: str) -> str:
    """Return a call in a plan that is not allowed; empty if there is none.

    One pattern with all names would take a second for each megabyte, while all threads wait.
    """
    lowered = plan.lower()
    for text in _FORBIDDEN:
        at = lowered.find(text)
        while at >= 0:
            before = lowered[at - 1 : at]
            if not (before.isalnum() or before == "_"):  # otherwise it is the end of another name
                return text
            at = lowered.find(text, at + 1)
    return ""


def plan_text(rows: DataFrame) -> str:
    """Return Spark's extended explanation of rows."""
    return explained(rows, "extended")


def explained(rows: DataFrame, mode: str) -> str:
    """Return Spark's explanation of rows, with paths of files."""
    connected = getattr(rows, "_explain_string", None)  # `explain` prints it
    if connected is not None:
        return str(connected(mode=mode))
    # A classic session has no method that returns the text.
    session = rows.sparkSession
    jvm = getattr(session.sparkContext, "_jvm")  # noqa: B009 - its type is not published
    plan = getattr(rows, "_jdf").queryExecution()  # noqa: B009
    return str(jvm.PythonSQLUtils.explainString(plan, mode))


def without_paths(plan: str) -> str:
    """Return an explanation without the paths of files, which are paths of the host."""
    return _PATH.sub("…", _LOCATION.sub(r"\1…", plan))


def relocated_error(text: str, query: str, *, first_line: int = 2) -> str:
    """Return Spark's error with the line and column of the user's text, both from 1.

    Only Spark's own note of the place changes: names, values and the SQL that Spark repeats may
    look like one.

    Args:
        text: Spark's error.
        query: The user's text.
        first_line: The line of Spark's text on which the user's text begins.
    """
    note = _note(text)
    if note is None:
        return text
    lines = query.count("\n") + 1
    line = int(note["line"]) - first_line + 1
    column = int(note["column"]) + (note["unit"] == "pos")
    if line > lines:  # the parenthesis after the query
        line, column = lines, len(query) - query.rfind("\n")
    before, after = text[: note.start()], text[note.end() :]
    before, after = _without_parentheses(before, after, note, query, first_line)
    return f"{before}{note['begin']}line {max(line, 1)}, column {column}{note['end']}{after}"


def place_in(text: str) -> str:
    """Return the place in an error of `relocated_error`; empty if there is none."""
    found = [*_RELOCATED.finditer(text)]
    return found[-1][1] if found else ""


def error_without_places(text: str, query: str) -> str:
    """Return Spark's error without lines, columns and marks, because they are not the user's.

    Args:
        text: Spark's error.
        query: The query that Spark got in parentheses; empty for a command.
    """
    note = _note(text)
    if note is None:
        return text
    before, after = text[: note.start()], text[note.end() :]
    if after.startswith(_SHOWN_BEGIN):  # the whole text, with a mark below the line of the place
        shown = after.removeprefix(_SHOWN_BEGIN).split("\n")
        at = min(int(note["line"]), len(shown) - 1)
        if _PARSE_MARK.fullmatch(shown[at]):
            del shown[at]
        after = _SHOWN_BEGIN + "\n".join(shown)
    elif note["end"].endswith("=="):  # lines of the text, with marks below each
        _, *shown = after.rstrip("\n").split("\n")
        kept = [one for at, one in enumerate(shown) if at % 2 == 0 or not _MARK.fullmatch(one)]
        return "\n".join([f"{before}{note['begin'].removesuffix(' (')} ==", *kept])
    return "".join(_without_parentheses(before, after, note, query) if query else (before, after))


def _note(text: str) -> re.Match[str] | None:
    """Return Spark's note of the place in an error; None if there is none.

    It writes at most one. The message before it may repeat values of users, and what follows it may
    repeat their SQL.
    """
    if _CODE not in text:
        found = [*_NOTE.finditer(text)]
    elif _CODE_AT_END.search(text):
        return None
    else:
        found = [*_NOTE_AFTER_CODE.finditer(text)]
    if not found:
        return None
    # A syntax error has no values, but repeats the whole text. In other errors, marks follow each
    # line of the text, so that two lines of it cannot look like a code and a note.
    return found[0] if text.startswith("[PARSE_") else found[-1]


def _without_parentheses(
    before: str, after: str, note: re.Match[str], query: str, first_line: int = 2
) -> tuple[str, str]:
    """Return Spark's error before and after the note, without the lines that Penstock writes."""
    if after.startswith(_SHOWN_BEGIN):
        shown = after.removeprefix(_SHOWN_BEGIN).removeprefix("(\n")
        after = _SHOWN_BEGIN + _SHOWN_END.sub("", shown)
    if int(note["line"]) > query.count("\n") + first_line:
        before = before.replace("at or near ')'", "at or near end of input", 1)
    return before, after
