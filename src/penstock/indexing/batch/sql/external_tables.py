"""External tables in a statement: `TABLE(EXTERN(…))`, moved from it into the task's spec. Pure.

    TABLE(EXTERN('inputSource', 'inputFormat', 'signature'))
    TABLE(EXTERN('inputSource', 'inputFormat')) [EXTEND] (name type, …)
    TABLE(EXTERN(inputSource => '…', inputFormat => '…', …)) …

    type   VARCHAR, BIGINT, DOUBLE, FLOAT, VARCHAR ARRAY …, TYPE('COMPLEX<json>')

The three arguments are JSON. As in Druid, a backslash in their quotes has no special meaning, and
'' stands for one quote. Owns the position of such a table in the statement, and the errors for
invalid ones.

Invariants: no part of an argument gets into the query, which reads the table by a name of
Penstock; in the statement for display, secrets in the arguments are masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import orjson

from penstock.core.errors import InvalidRequest
from penstock.core.sql_text import Token, place
from penstock.indexing.batch.sql.statement_tokens import StatementTokens
from penstock.indexing.secrets import masked
from penstock.indexing.specs.errors import Mistake, SpecError, did_you_mean
from penstock.indexing.specs.inputs import EXTERN_PREFIX, ExternTable, extern_name
from penstock.indexing.specs.spec_text import read_list, read_model, read_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic import JsonValue

_ARGUMENTS: Final = ("inputSource", "inputFormat", "signature")
_SQL_TYPES: Final[Mapping[str, str]] = {
    "VARCHAR": "string",
    "CHAR": "string",
    "BIGINT": "long",
    "INTEGER": "long",
    "DOUBLE": "double",
    "FLOAT": "float",
}
_TYPE_REMEDY: Final = (
    "the types are VARCHAR, BIGINT, DOUBLE, FLOAT, arrays such as VARCHAR ARRAY, and"
    " TYPE('COMPLEX<json>'); convert others in the query, such as CAST(name AS TIMESTAMP)"
)
# Functions of Druid that take as arguments the parts that EXTERN takes as JSON.
_FUNCTIONS: Final = frozenset({"HTTP", "INLINE", "LOCALFILES", "S3"})
# A table may be read several times; each is compared with the others.
_CALLS_MAX: Final = 500
_FORM: Final = "write FROM TABLE(EXTERN('inputSource', 'inputFormat', 'signature'))"


@dataclass(frozen=True, slots=True)
class ExternalTable:
    """One external table, and its position in the statement.

    Attributes:
        table: Its JSON form, which was validated.
        start: Start of the table.
        end: End of the table.
        shown: (start, end, text) of the replacements in the statement for display.
    """

    table: dict[str, JsonValue]
    start: int
    end: int
    shown: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True)
class ExternalTables:
    """The external tables of a statement; equal ones are read once."""

    sql: str
    found: tuple[ExternalTable, ...]

    @property
    def tables(self) -> list[JsonValue]:
        """Their JSON forms; the query reads the first as `extern_name(1)`, and so on."""
        return [*self._distinct()]

    @property
    def shown(self) -> str:
        """The statement without secrets."""
        return _replaced(
            self.sql, 0, len(self.sql), [cut for one in self.found for cut in one.shown]
        )

    def query(self, start: int, end: int) -> str:
        """Return a part of the statement that reads the tables by their names; lines are kept."""
        distinct = self._distinct()
        cuts = []
        for one in self.found:
            name = extern_name(distinct.index(one.table) + 1)
            lines = self.sql.count("\n", one.start, one.end)
            cuts.append((one.start, one.end, name + "\n" * lines))
        return _replaced(self.sql, start, end, cuts)

    def _distinct(self) -> list[dict[str, JsonValue]]:
        distinct: list[dict[str, JsonValue]] = []
        for one in self.found:
            if one.table not in distinct:
                distinct.append(one.table)
        return distinct


def read_external_tables(sql: str, found: Sequence[Token]) -> ExternalTables:
    """Return the external tables of a statement.

    Args:
        sql: The statement.
        found: Its tokens.

    Raises:
        InvalidRequest: One does not have the form above, or its arguments are invalid; the message
            has the argument and the position in it.
    """
    for token in found:
        if token.name.lower().startswith(EXTERN_PREFIX):
            raise InvalidRequest(
                f"{EXTERN_PREFIX}… is a name of Penstock's own, {place(sql, token.position)}: use"
                " another one",
                place="query",
            )
    for at, token in enumerate(found):
        # One of them could hold a password, which would be stored with the query.
        if token.name.upper() in _FUNCTIONS and _is_table_call(found, at):
            raise InvalidRequest(
                f"{token.name.upper()} is not supported, {place(sql, token.position)}: {_FORM}",
                place="query",
            )
    calls = list(_calls(found))
    if len(calls) > _CALLS_MAX:
        raise InvalidRequest(
            f"EXTERN is called {len(calls)} times, but the limit is {_CALLS_MAX}: one inputSource"
            " may have many files",
            place="query",
        )
    return ExternalTables(sql, tuple(_extern(sql, found, at) for at in calls))


def _calls(found: Sequence[Token]) -> Iterator[int]:
    """Yield the calls of EXTERN; a column or a table may also have that name."""
    for at, (token, following) in enumerate(pairwise(found)):
        if token.name.upper() != "EXTERN" or following.text != "(":
            continue
        first = [one.text for one in found[at + 2 : at + 5]]
        is_text = at + 2 < len(found) and found[at + 2].is_text
        is_call = is_text or first[1:] == ["=", ">"] or first[:1] in ([")"], ["?"])
        if is_call or _is_table_call(found, at) or _is_target(found, at):
            yield at


def _is_table_call(found: Sequence[Token], at: int) -> bool:
    """Return whether a token is a function called as a table: the name in `TABLE(name(…))`."""
    around = [one.text for one in (*found[max(at - 2, 0) : at], *found[at + 1 : at + 2])]
    return around == ["TABLE", "(", "("]


def _is_target(found: Sequence[Token], at: int) -> bool:
    return at > 0 and found[at - 1].text == "INTO"


def _extern(sql: str, found: Sequence[Token], at: int) -> ExternalTable:
    where = place(sql, found[at].position)
    if _is_target(found, at):
        text = "export rows with penstock sql --format csv, not with a statement that writes"
        raise InvalidRequest(f"EXTERN is not a valid target, {where}: {text}", place="query")
    if not _is_table_call(found, at):
        raise InvalidRequest(f"EXTERN must be inside TABLE(…), {where}: {_FORM}", place="query")
    words = StatementTokens(sql, found, at + 1)
    arguments = _arguments(words)
    words.take(")")
    words.take(")")
    columns = _columns(words)
    # Rows of a database have no format; the table's validation requires one for other sources.
    for name in ("inputSource", "signature"):
        if name not in arguments and not (name == "signature" and columns):
            remedy = f"{_FORM}, or the columns after it: (name VARCHAR, …)"
            raise InvalidRequest(f"EXTERN lacks its {name}, {where}: {remedy}", place="query")
    if columns and "signature" in arguments:
        text = "keep either the signature or the list after it"
        raise InvalidRequest(f"EXTERN has its columns twice, {where}: {text}", place="query")
    table: dict[str, JsonValue] = {name: one.json() for name, one in arguments.items()}
    if columns:
        table["signature"] = columns
    try:
        read_model(ExternTable, table)
    except SpecError as error:
        raise _placed(error, arguments, where) from None
    shown = tuple(
        (one.start, one.end, hidden)
        for name, one in arguments.items()
        if (hidden := _masked(name, table[name])) is not None
    )
    return ExternalTable(table, found[at - 2].position, words.end, shown)


@dataclass(frozen=True, slots=True)
class _Argument:
    """One argument: its name, how it was given (by number or name), its literal, its position."""

    name: str
    label: str
    raw: str
    start: int
    where: str

    @property
    def end(self) -> int:
        return self.start + len(self.raw)

    @property
    def text(self) -> str:
        return self.raw[2:-1] if self.raw[0] in "rR" else self.raw[1:-1].replace("''", "'")

    def json(self) -> JsonValue:
        """Return the parsed JSON.

        Raises:
            SpecError: It is not JSON, or not of the kind that this argument requires.
        """
        text = self.text.strip()
        try:
            if self.name == "signature":
                _check_start(
                    text, "[", 'list of columns, such as [{"name": "a", "type": "string"}]'
                )
                return read_list(text)
            _check_start(text, "{", 'object, such as {"type": "…"}')
            found: dict[str, JsonValue] = orjson.loads(orjson.dumps(read_object(text)))
        except SpecError as error:
            raise self.placed(error) from None
        return found

    def placed(self, error: SpecError) -> SpecError:
        """Return mistakes in the JSON with their position in the statement."""
        return SpecError(
            tuple(
                Mistake(self.place(_joined(self.name, one.place)), f"{one.message}, {self.where}")
                for one in error.mistakes
            )
        )

    def place(self, inner: str) -> str:
        """Return a place in the JSON as a place in the statement."""
        return f"EXTERN argument {self.label}, {inner}"


def _arguments(words: StatementTokens) -> dict[str, _Argument]:
    """Parse `( 'text', … )` or `( name => 'text', … )`, except the last parenthesis."""
    words.take("(")
    found: dict[str, _Argument] = {}
    while not words.sees(")"):
        if found:
            words.take(",")
        if words.token.text == "?":
            raise words.wrong("a task takes no parameters: the text itself is expected")
        number, label, named = len(found), str(len(found) + 1), not words.token.is_text
        if named:
            name = _argument_name(words)
            label = name
            words.take("=")
            words.take(">")
        elif number == len(_ARGUMENTS):
            raise words.wrong(f"EXTERN takes {len(_ARGUMENTS)} arguments: ) is expected")
        else:
            name = _ARGUMENTS[number]
        if name in found or any((one.label == one.name) is not named for one in found.values()):
            raise words.wrong("each argument must occur once, and either all by name or none")
        token = words.token
        words.text(f"EXTERN argument {label}: JSON")
        where = place(words.sql, token.position)
        found[name] = _Argument(name, label, token.raw, token.position, where)
    return found


def _argument_name(words: StatementTokens) -> str:
    token = words.token
    name = words.name("EXTERN argument: a text, or inputSource => '…',")
    for known in _ARGUMENTS:
        if known.lower() == name.lower():
            return known
    where = place(words.sql, token.position)
    hint = did_you_mean(name, list(_ARGUMENTS))
    raise InvalidRequest(f"EXTERN has no argument {name!r:.60}, {where}{hint}", place="query")


def _columns(words: StatementTokens) -> list[JsonValue]:
    """Parse `[EXTEND] ( name type, … )`; return nothing if no list follows."""
    extends = words.skip("EXTEND")
    if not extends and not words.sees("("):
        return []
    words.take("(")
    found: list[JsonValue] = []
    while not found or not words.sees(")"):
        if found:
            words.take(",")
        name = words.name("a column's name")
        found.append({"name": name, "type": _type(words)})
    words.take(")")
    return found


def _type(words: StatementTokens) -> str:
    token = words.token
    if words.skip("TYPE", "("):
        given = words.text("a type").strip()
        words.take(")")
        return given
    type_ = _SQL_TYPES.get(token.text)
    if type_ is None:
        raise words.wrong(f"a column's type is expected ({_TYPE_REMEDY})")
    words.at += 1
    if words.skip("("):  # a length, which has no effect
        words.name("a length")
        words.take(")")
    return f"array<{type_}>" if words.skip("ARRAY") else type_


def _placed(error: SpecError, arguments: Mapping[str, _Argument], where: str) -> SpecError:
    found = []
    for one in error.mistakes:
        root = next((name for name in _ARGUMENTS if one.place.startswith(name)), None)
        argument = None if root is None else arguments.get(root)
        if argument is not None:
            mistake = Mistake(argument.place(one.place), f"{one.message}, {argument.where}")
        elif root == "inputFormat":
            mistake = Mistake(f"EXTERN, {one.place}", f"{one.message}, {where}")
        else:
            mistake = Mistake(f"EXTERN columns, {one.place}", f"{one.message}, {where}")
        found.append(mistake if one.place else one)
    return SpecError(tuple(found))


def _joined(root: str, inner: str) -> str:
    return root + inner if inner.startswith("[") or not inner else f"{root}.{inner}"


def _check_start(text: str, mark: str, what: str) -> None:
    if not text.startswith(mark):
        raise SpecError((Mistake("", f"must be a JSON {what}"),))


def _masked(name: str, value: JsonValue) -> str | None:
    """Return the literal of an argument with its secrets masked; None if it has no secrets."""
    given: dict[str, object] = {name: value}
    hidden = masked(given)
    if hidden == given:
        return None
    return "'" + orjson.dumps(hidden[name]).decode().replace("'", "''") + "'"


def _replaced(sql: str, start: int, end: int, cuts: Sequence[tuple[int, int, str]]) -> str:
    """Return a part of a text with some disjoint places replaced."""
    made, at = [], start
    for first, last, text in sorted(cuts):
        if first >= start and last <= end:
            made += [sql[at:first], text]
            at = last
    return "".join((*made, sql[at:end]))
