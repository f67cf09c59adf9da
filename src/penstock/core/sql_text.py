"""Text of Spark's SQL: its tokens, and constructs that would run other code than SQL. Pure.

Owns a lexer that agrees with Spark's about where text, names and comments begin and end, and the
list of constructs that are not allowed in statements and expressions from outside. It does not know
the grammar: callers determine the meaning of a statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from penstock.core.errors import InvalidRequest

# Possessive quantifiers (`++`, `*+`) prevent backtracking. Without them, matching keeps 150 bytes
# of state for each character, and blocks all threads of the process: 17 s for 10 MB.
_TOKEN: Final = re.compile(
    r"(?P<space>\s+|--(?:\\\n|[^\r\n])*+)"
    r"|(?P<comment>/\*)"
    r"|(?P<text>[rR]'[^']*'|'(?:[^'\\]++|\\.|'')*+')"
    r'|(?P<quoted>[rR]"[^"]*"|"(?:[^"\\]++|\\.|"")*+"|`(?:[^`]++|``)*+`)'
    r"|(?P<word>\w+)"
    r"|(?P<mark>.)",
    re.DOTALL,
)
# The beginning of a hint is plain text within a comment.
_COMMENT_MARK: Final = re.compile(r"/\*(?!\+)|\*/")
# Functions that statements and expressions from outside may not call, with the reasons.
_RUNS_CODE: Final = "it can run any code"
_READS_FILES: Final = "it can open files and URLs"
_SHOWS_HOST: Final = "it shows paths or logs of the host"
_FORBIDDEN_CALLS: Final[Mapping[str, str]] = {
    # The clause IDENTIFIER can name any of the others by a computed text.
    **dict.fromkeys(("java_method", "reflect", "try_reflect", "identifier"), _RUNS_CODE),
    **dict.fromkeys(("from_avro", "to_avro", "schema_of_avro"), _READS_FILES),
    **dict.fromkeys(("from_protobuf", "to_protobuf"), _READS_FILES),
    # Their parser loads the external DTD of a document.
    **dict.fromkeys(("xpath", "xpath_string", "xpath_boolean", "xpath_number"), _READS_FILES),
    **dict.fromkeys(("xpath_double", "xpath_float", "xpath_int"), _READS_FILES),
    **dict.fromkeys(("xpath_long", "xpath_short"), _READS_FILES),
    **dict.fromkeys(("input_file_name", "python_worker_logs"), _SHOWS_HOST),
    **dict.fromkeys(("input_file_block_start", "input_file_block_length"), _SHOWS_HOST),
}
FORBIDDEN_FUNCTIONS: Final = frozenset(_FORBIDDEN_CALLS)
"""Functions of Spark that `check_calls` refuses, in lower case."""
# Number of arguments before the options, which could name a schema file to open.
_XML_ARGUMENTS: Final[Mapping[str, int]] = {"from_xml": 2, "schema_of_xml": 1, "to_xml": 1}
_XML_OPTIONS: Final = frozenset(
    {"rowtag", "roottag", "arrayelementname", "declaration", "nullvalue", "locale", "mode"}
    | {"attributeprefix", "valuetag", "excludeattribute", "ignorenamespace", "wildcardcolname"}
    | {"ignoresurroundingspaces", "columnnameofcorruptrecord", "charset", "encoding"}
    | {"dateformat", "timestampformat", "timestampntzformat", "timezone", "inferschema"}
    | {"samplingratio", "preferdate", "treatemptyvaluesasnulls", "singlevariantcolumn"}
)
# Number of arguments before a schema or type that is given as text. Spark also accepts JSON there,
# in which the default value of a field is an expression that Spark evaluates unchecked, and a
# user-defined type names a class that Spark loads, and a module that PySpark imports.
_SCHEMA_ARGUMENTS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("from_json", "from_csv", "from_xml"), 1),
    **dict.fromkeys(("variant_get", "try_variant_get"), 2),
}
SCHEMA_READERS: Final = frozenset(_SCHEMA_ARGUMENTS)
"""Functions of Spark that read a schema or a type from a text, in lower case."""
# JSON needs a brace to have fields, and Spark replaces escapes that begin with a backslash.
_PLAIN_SCHEMA: Final = re.compile(r"'[^'\\{]*'")
_SCHEMA_FUNCTIONS: Final = frozenset(
    {"schema_of_json", "schema_of_csv", "schema_of_xml", "schema_of_variant"}
)
_PLAIN_TEXT: Final = re.compile(r"'\w*'")
# Spark replaces variables before it parses a statement, even in texts and comments. A run of
# characters without a closing brace is skipped as a whole: searching again from each `${` in it
# would take minutes for a long statement.
_SUBSTITUTION: Final = re.compile(r"\$\{(?:(?P<name>\S+?)\}|\S*+)")
# Functions that return several rows or columns, or none, for one row.
_GENERATORS: Final = frozenset(
    {"explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer"}
    | {"stack", "json_tuple", "variant_explode", "variant_explode_outer"}
)
# Words that follow a field, but not FROM.
_OPERATOR_WORDS: Final = frozenset(
    {
        "IS",
        "AND",
        "OR",
        "NOT",
        "LIKE",
        "ILIKE",
        "RLIKE",
        "REGEXP",
        "IN",
        "BETWEEN",
        "DIV",
        "COLLATE",
    }
)
# Words that begin a clause, may be followed by a name, and cannot follow such a keyword.
_CLAUSES: Final = frozenset({"WHERE", "HAVING", "GROUP", "ORDER", "LIMIT", "OFFSET"})
_AFTER_CLAUSES: Final = frozenset(
    {
        "WHERE",
        "HAVING",
        ")",
        ",",
        ";",
        "|",
        "UNION",
        "EXCEPT",
        "INTERSECT",
        "MINUS",
        "PARTITIONED",
        "CLUSTERED",
    }
    | {"JOIN", "LEFT", "RIGHT", "INNER", "FULL", "CROSS", "WINDOW"}
)
_BEFORE_NAMES: Final = frozenset(
    {"ALL", "AND", "AS", "BETWEEN", "BY", "CASE", "DISTINCT", "ELSE", "FROM", "IN", "IS", "JOIN"}
    | {"LIKE", "NOT", "ON", "OR", "SELECT", "TABLE", "THEN", "WHEN", "WHERE", "HAVING", "LIMIT"}
    | {"OFFSET", "USING"}
)
_MAX_EXPRESSION_LENGTH: Final = 100_000
_DEPTH_MAX: Final = 1_000
_OPENING: Final = frozenset("([{")
_CLOSING: Final = frozenset(")]}")


# Not frozen: a long statement has 100,000, and each would take twice as long to create.
@dataclass(slots=True)
class Token:
    """A piece of SQL that is neither space nor comment.

    Attributes:
        raw: The text as written.
        text: A word in upper case, or a mark; empty for quoted names and text.
        position: Its position.
        name: A word or quoted name, without quotes.
        is_text: Whether it is text, `'…'`.
    """

    raw: str
    text: str
    position: int
    name: str = ""
    is_text: bool = False


def tokens(sql: str) -> list[Token]:
    """Split SQL into tokens.

    Raises:
        InvalidRequest: A text, a name or a comment is not closed.
    """
    return list(each_token(sql))


def each_token(sql: str) -> Iterator[Token]:
    """Split SQL into tokens one by one, so that a caller may stop before the end.

    Raises:
        InvalidRequest: A text, a name or a comment is not closed.
    """
    at = 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        assert match is not None  # every character matches something
        kind, raw, end = match.lastgroup, match.group(), match.end()
        if kind == "word":
            yield Token(raw, raw.upper(), at, raw)
        elif kind == "mark":
            if raw in "'\"`$":
                raise InvalidRequest(
                    f"{raw} opens a text or name that is not closed or not supported,"
                    f" {place(sql, at)}: close it, and quote text with '…', names with \"…\""
                )
            yield Token(raw, raw, at)
        elif kind == "text":
            yield Token(raw, "", at, is_text=True)
        elif kind == "quoted":
            yield Token(raw, "", at, name=_unquoted(raw))
        elif kind == "comment" and sql[end : end + 1] != "+":
            end = _past_comment(sql, at)
        at = end


def check_calls(sql: str, found: Sequence[Token]) -> None:
    """Refuse calls that run other code than SQL, open files, or reveal data of the host.

    Raises:
        InvalidRequest: A function, a clause or a variable does, or parentheses are nested so deeply
            that Spark's recursive parser would overflow its stack; the message has the place.
    """
    _check_variables(sql)
    _check_depth(sql, found)
    closing = closing_parentheses(found)
    for at, (token, following) in enumerate(pairwise(found)):
        # `USING (columns)` belongs to a join; all other forms run a script, or load code.
        if token.text == "USING" and following.text != "(":
            raise InvalidRequest(
                f"running a script is not allowed, {place(sql, token.position)}: use functions;"
                ' a column of that name is written "using"'
            )
        if following.text == "(" and token.name:
            _check_call(sql, found, at, closing)
            _check_schema(sql, found, at, closing)


def _check_variables(sql: str) -> None:
    for variable in _SUBSTITUTION.finditer(sql):
        if variable["name"]:
            raise InvalidRequest(
                f"{variable.group():.40} is not allowed, {place(sql, variable.start())}: Spark"
                " could replace it by a variable of the host; write text with a backslash,"
                " '$\\{…}', or pass it as a parameter"
            )


def _check_call(sql: str, found: Sequence[Token], at: int, closing: Mapping[int, int]) -> None:
    """Refuse the call of a forbidden function."""
    # In lower case, as Spark looks functions up: lowercasing converts some letters to a `k`.
    name = found[at].name.lower()
    owner = found[at - 2].name.lower() if at > 1 and found[at - 1].text == "." else "builtin"
    count = _XML_ARGUMENTS.get(name)
    if why := _FORBIDDEN_CALLS.get(name):
        what, why = f"{name}() is not allowed", f"{why}; use other functions"
    elif owner != "builtin":
        what = f"the function {owner}.{name} is not allowed"
        why = "only Spark's own functions may be called, by their names alone"
    elif count and not _has_plain_options(_arguments(found, at, count, closing)):
        what = (
            f"options of {name}() must be written as map('name', 'value', …) and may only change"
            " how XML is read"
        )
        why = "others could open files"
    else:
        return
    # Computed only here: counting lines takes too long for each of many calls.
    raise InvalidRequest(f"{what}, {place(sql, found[at].position)}: {why}")


def _has_plain_options(rest: Sequence[Token]) -> bool:
    """Return whether the options of a call are absent or cannot name a file."""
    if not rest:
        return True
    if [one.text for one in rest[:2]] != ["MAP", "("] or rest[-1].text != ")":
        return False
    inner = rest[2:-1]
    marks = all(one.text == "," for one in inner[1::2])
    texts = all(one.is_text and _PLAIN_TEXT.fullmatch(one.raw) for one in inner[::4])
    names = {one.raw.strip("'").lower() for one in inner[::4]}
    return len(inner) % 4 == 3 and marks and texts and names <= _XML_OPTIONS


def _check_schema(sql: str, found: Sequence[Token], at: int, closing: Mapping[int, int]) -> None:
    """Refuse a call whose schema is neither one plain text nor derived from an example."""
    name = found[at].name.lower()
    number = _SCHEMA_ARGUMENTS.get(name)
    schema = () if number is None else _arguments(found, at, number, closing)
    if not schema:
        return
    begin, end = closing.get(at + 1, len(found)) - len(schema), 1
    if schema[0].name.lower() in _SCHEMA_FUNCTIONS:
        end = closing.get(begin + 1, begin) - begin + 1
        is_plain = end > 1
    else:
        is_plain = bool(_PLAIN_SCHEMA.fullmatch(schema[0].raw))
    if is_plain and (end == len(schema) or schema[end].text == ","):
        return
    where = place(sql, schema[0].position)
    raise InvalidRequest(
        f"the schema {schema[0].raw:.40} of {name}() is not allowed, {where}: Spark could read it"
        " as JSON, which can name functions and classes that are not allowed; write a text such as"
        " 'a INT, b ARRAY<STRING>', without backslashes, braces and doubled quotes, or a call of"
        " schema_of_json, schema_of_csv, schema_of_xml or schema_of_variant"
    )


def _arguments(
    found: Sequence[Token], at: int, number: int, closing: Mapping[int, int]
) -> Sequence[Token]:
    """Return the tokens of a call after its first arguments; none if it has only these."""
    end = closing.get(at + 1, len(found))
    here, depth, commas = at + 2, 0, 0
    while here < end:
        text = found[here].text
        depth += (text in _OPENING) - (text in _CLOSING)
        if text == "(":
            # Skipped as a whole: nested calls would take minutes otherwise.
            depth -= 1
            here = closing.get(here, here)
        elif text == "," and not depth:
            commas += 1
            if commas == number:
                return found[here + 1 : end]
        here += 1
    return ()


def check_unquoted(sql: str, found: Sequence[Token]) -> None:
    """Refuse unquoted names that Spark accepts only in quotes, with a remedy that works here.

    Raises:
        InvalidRequest: An unquoted name has non-ASCII letters; the message has its place.
    """
    for token in found:
        if token.text and token.name and not token.name.isascii():
            raise InvalidRequest(
                f"{token.name} has characters other than a to z, digits and _,"
                f' {place(sql, token.position)}: write it in double quotes, "{token.name}"'
            )


def check_clauses(sql: str, found: Sequence[Token]) -> None:
    """Refuse a clause that is only a keyword, such as WHERE without a condition.

    Spark would read the keyword as an alias of the table or column before it, and answer without
    the clause.

    Raises:
        InvalidRequest: A keyword has nothing after it; the message has its place.
    """
    for at, token in enumerate(found):
        if token.text not in _CLAUSES or at == 0:
            continue
        before = found[at - 1]
        is_name = before.name and before.text not in _BEFORE_NAMES
        is_alias = is_name or before.is_text or before.text == ")"
        if is_alias and _ends_clause(found[at + 1 : at + 3]):
            raise InvalidRequest(
                f"{token.text} has nothing after it, {place(sql, token.position)}: complete or"
                f' remove it; a name is written "{token.name}"'
            )


def _ends_clause(following: Sequence[Token]) -> bool:
    """Return whether a clause ends before the next two tokens, of which there may be fewer."""
    if not following:
        return True
    first, second = following[0].text, following[1] if len(following) > 1 else None
    if first in {"GROUP", "ORDER"}:
        return second is not None and second.text == "BY"
    if first in {"LIMIT", "OFFSET"}:
        return second is not None and (second.raw.isdigit() or second.text in {"ALL", "?"})
    return first in _AFTER_CLAUSES


def is_table_call(found: Sequence[Token], at: int) -> bool:
    """Return whether a token is a function called as a table: the name in `TABLE(name(…))`."""
    around = [one.text for one in (*found[max(at - 2, 0) : at], *found[at + 1 : at + 2])]
    return around == ["TABLE", "(", "("]


def check_expression(expression: str) -> None:
    """Refuse an expression that runs other code than SQL, or does not return one value per row.

    Raises:
        InvalidRequest: It does, is incomplete, or is too long.
    """
    if len(expression) > _MAX_EXPRESSION_LENGTH:
        raise InvalidRequest(
            f"the expression has {len(expression)} characters, more than {_MAX_EXPRESSION_LENGTH}:"
            " compute it in several columns"
        )
    found = tokens(expression)
    check_calls(expression, found)
    check_unquoted(expression, found)
    for at, (token, following) in enumerate(pairwise(found)):
        if following.text == "(" and token.name.lower() in _GENERATORS:
            raise InvalidRequest(
                f"{token.name.lower()}() is not allowed, {place(expression, token.position)}: it"
                " does not return exactly one row for each; publish events that are rows already"
            )
        if token.text == "OVER" and following.text == "(":
            raise InvalidRequest(
                f"a window is not allowed, {place(expression, token.position)}: an expression sees"
                ' only its own row; use windows in queries; a field of that name is written "over"'
            )
        if _begins_query(found, at):
            raise InvalidRequest(
                f"a query is not allowed, {place(expression, token.position)}: an expression sees"
                f' only its own row; a field of that name must be quoted: "{token.raw}"'
            )


def _begins_query(found: Sequence[Token], at: int) -> bool:
    """Return whether a word before another token begins a query, and is not a field."""
    word, following = found[at].text, found[at + 1]
    if word == "FROM":
        # `(FROM t)` is a query, `trim(FROM a)` is not.
        before = [one.text for one in found[max(at - 2, 0) : at]]
        is_table = bool(following.name) and following.text not in _OPERATOR_WORDS
        is_first = before[-1:] == ["("] and before[0] != "TRIM"
        return is_first and (is_table or following.text == "(")
    return word == "SELECT" or (word == "TABLE" and bool(following.name))


def closing_parentheses(found: Sequence[Token]) -> Mapping[int, int]:
    """Return the indexes of closing parentheses by those of the opening ones."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for at, token in enumerate(found):
        if token.text == "(":
            opened.append(at)
        elif token.text == ")" and opened:
            pairs[opened.pop()] = at
    return pairs


def place(sql: str, position: int) -> str:
    """Return the line and column of a position, as an editor shows them."""
    line = sql.count("\n", 0, position) + 1
    column = position - (sql.rfind("\n", 0, position) + 1) + 1
    return f"line {line}, column {column}"


def _check_depth(sql: str, found: Sequence[Token]) -> None:
    depth = 0
    for token in found:
        if token.text in _OPENING:
            depth += 1
            if depth > _DEPTH_MAX:
                raise InvalidRequest(
                    f"nested deeper than {_DEPTH_MAX} parentheses, {place(sql, token.position)}:"
                    " make it flatter"
                )
        elif token.text in _CLOSING:
            depth -= 1


def _past_comment(sql: str, at: int) -> int:
    """Return the end of a bracketed comment, which may be nested."""
    start = at
    depth = 0
    for mark in _COMMENT_MARK.finditer(sql, at):
        depth += 1 if mark.group() == "/*" else -1
        if not depth:
            return mark.end()
    raise InvalidRequest(f"a comment is not closed, {place(sql, start)}: end it with */")


def _unquoted(text: str) -> str:
    body = text[2:-1] if text[0] in "rR" else text[1:-1]
    return body.replace("``", "`") if text[0] == "`" else body.replace('""', '"')
