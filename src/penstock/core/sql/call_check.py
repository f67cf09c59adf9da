"""Functions that statements and expressions from outside may not call. Pure.

Owns the list of Spark's functions that run other code than SQL, open files or show data of the
host, and the arguments of others that could do so. `functions` is the allow-list; this module has
the reasons, and the checks that a list of names cannot make. Spark looks functions up in lower
case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql import tree
from penstock.core.sql_text import Token, place

_RUNS_CODE: Final = "it can run any code"
_READS_FILES: Final = "it can open files and URLs"
_SHOWS_HOST: Final = "it shows paths or logs of the host"
REFUSED_FUNCTIONS: Final[Mapping[str, str]] = {
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
"""Functions of Spark that `check_call` refuses, in lower case, with the reasons."""

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
_BUILTIN: Final = "builtin"


def name_position(tokens: Sequence[Token], call: tree.Call) -> int:
    """Return the position of the name of a call, without its schema."""
    return tokens[call.start + 2 * (len(call.name) - 1)].position


def check_call(sql: str, tokens: Sequence[Token], call: tree.Call) -> None:
    """Refuse a call that runs other code than SQL, opens files, or reveals data of the host.

    Args:
        sql: The text.
        tokens: Its tokens.
        call: The call.

    Raises:
        InvalidRequest: The function, its schema, its options or its type does; the message has the
            place.
    """
    name = call.name[-1].lower()
    owner = call.name[-2].lower() if len(call.name) > 1 else _BUILTIN
    if why := REFUSED_FUNCTIONS.get(name):
        what, why = f"{name}() is not allowed", f"{why}; use other functions"
    elif owner != _BUILTIN:
        what = f"the function {owner}.{name} is not allowed"
        why = "only Spark's own functions may be called, by their names alone"
    elif name in _XML_ARGUMENTS and not _has_plain_options(call, _XML_ARGUMENTS[name], tokens):
        what = (
            f"options of {name}() must be written as map('name', 'value', …) and may only change"
            " how XML is read"
        )
        why = "others could open files"
    elif name in _SCHEMA_ARGUMENTS and (schema := _unknown_schema(call, tokens)):
        raw = tokens[schema.start].raw
        what = f"the schema {raw:.40} of {name}() is not allowed"
        why = (
            "Spark could read it as JSON, which can name functions and classes that are not"
            " allowed; write a text such as 'a INT, b ARRAY<STRING>', without backslashes, braces"
            " and doubled quotes, or a call of schema_of_json, schema_of_csv, schema_of_xml or"
            " schema_of_variant"
        )
        raise InvalidRequest(f"{what}, {place(sql, tokens[schema.start].position)}: {why}")
    else:
        return
    raise InvalidRequest(f"{what}, {place(sql, name_position(tokens, call))}: {why}")


def _has_plain_options(call: tree.Call, count: int, tokens: Sequence[Token]) -> bool:
    """Return whether the options of a call are absent or cannot name a file."""
    if any(isinstance(one, tree.Named) for one in call.arguments):
        return False  # it may stand at any place
    match call.arguments[count:]:
        case ():
            return True
        case (tree.Call(name=(function,)) as options,) if function.lower() == "map":
            # A name, and a value of one token, by turns.
            names = [
                tokens[one.start].raw if _is_one_text(one) else "" for one in options.arguments[::2]
            ]
            is_short = all(one.end - one.start == 1 for one in options.arguments)
            are_known = all(
                _PLAIN_TEXT.fullmatch(one) and one.strip("'").lower() in _XML_OPTIONS
                for one in names
            )
            return is_short and are_known and len(options.arguments) == 2 * len(names) > 0
        case _:
            return False


def _unknown_schema(call: tree.Call, tokens: Sequence[Token]) -> tree.Node | None:
    """Return a schema that is neither one plain text nor derived from an example."""
    named = next((one for one in call.arguments if isinstance(one, tree.Named)), None)
    rest = call.arguments[_SCHEMA_ARGUMENTS[call.name[-1].lower()] :]
    if named is not None or not rest:
        return named  # it may stand at any place
    schema = rest[0]
    if isinstance(schema, tree.Call):
        is_plain = schema.name[-1].lower() in _SCHEMA_FUNCTIONS
    else:
        is_plain = _is_one_text(schema) and bool(_PLAIN_SCHEMA.fullmatch(tokens[schema.start].raw))
    return None if is_plain else schema


def _is_one_text(node: tree.Node) -> bool:
    return isinstance(node, tree.Text) and node.end - node.start == 1
