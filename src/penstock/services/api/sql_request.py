"""The request of `POST /druid/v2/sql`: Druid's JSON, checked and read as a query.

Owns the fields of the body and their errors. Unknown fields are ignored, because Druid's clients
send some as hints.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import orjson

from penstock.core.errors import InvalidRequest, counted
from penstock.core.instants import parse_time
from penstock.core.sql_sizes import TEXT_MAX, TOKENS_MAX, check_text, statement_tokens
from penstock.core.whole_numbers import is_int64
from penstock.fastpath.sql_service import ENGINES
from penstock.services.api.indexer.sql_task import refuse_writes
from penstock.services.api.sql_results import TypeName, check_format
from penstock.spark.projections.selector import projection_options
from penstock.spark.sql.service import SqlQuery, SqlValue

if TYPE_CHECKING:
    from starlette.requests import Request

_UTC: Final = (None, "", "UTC", "Etc/UTC", "GMT", "Z", "+00:00")
_TIMES: Final = ("TIMESTAMP", "DATE")
# The JSON types with which a parameter of each of Druid's types may be written.
_PARAMETER_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("VARCHAR", "CHAR"), (str,)),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT"), (int,)),
    **dict.fromkeys(("FLOAT", "REAL", "DOUBLE", "DECIMAL"), (int, float)),
    "BOOLEAN": (bool,),
    **dict.fromkeys(_TIMES, (str, int)),
}
_DESCRIBE: Final = "DESCRIBE QUERY "
_QUERY_ID: Final = re.compile(r"[!-~]{1,255}")
_FLAGS: Final = {"true": True, "false": False}
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


async def read_body(request: Request) -> Mapping[str, object]:
    """Return the fields of a request's body, which may also be a statement as plain text.

    Raises:
        InvalidRequest: The body is not a JSON object.
    """
    raw = await request.body()
    if request.headers.get("content-type", "").startswith("text/plain"):
        return {"query": raw.decode(errors="replace")}
    body: object
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest('the body must be a JSON object such as {"query": "SELECT 1"}')
    return body


class SqlRequest:
    """A request that was parsed and checked. A long statement takes a while: not on an event loop.

    Args:
        body: The fields of its body.

    Attributes:
        query: The query that it asks for.
        result_format: The format of the answer.
        header: Whether the answer begins with the names of the columns.
        types: Which names of the columns' types the header has.

    Raises:
        InvalidRequest: A field is not valid, or the statement writes.
    """

    def __init__(self, body: Mapping[str, object]) -> None:
        statement = body.get("query")
        if not isinstance(statement, str) or not statement.strip():
            raise InvalidRequest("must be the text of a statement", place="query")
        check_text(statement)
        refuse_writes(statement)
        self.result_format = check_format(body.get("resultFormat"))
        self.header = _flag(body, "header")
        self.types = _types(body, header=self.header)
        context = body.get("context") or {}
        if not isinstance(context, dict):
            raise InvalidRequest("must be an object", place="context")
        check_zone(context.get("sqlTimeZone"), "context.sqlTimeZone")
        parameters = _parameters(body.get("parameters"))
        _check_bound(statement, len(parameters))
        self.query = SqlQuery(
            sql=statement,
            parameters=parameters,
            query_id=query_id_in(context, "sqlQueryId"),
            row_limit=whole_number(context, "sqlOuterLimit", "rows"),
            timeout_ms=whole_number(context, "timeout", "milliseconds"),
            projections=projection_options(context),
            engine=engine_in(context),
            uses_cache=uses_cache_in(context),
        )


def check_zone(zone: object, place: str) -> None:
    """Return if a time zone for answers is UTC, or there is none.

    Raises:
        InvalidRequest: It is another one.
    """
    if zone not in _UTC:
        raise InvalidRequest(
            f"{zone!r:.60} is not UTC, the only time zone of answers: leave it out, and convert"
            " in the query, with from_utc_timestamp(__time, 'Europe/Berlin')",
            place=place,
        )


def engine_in(context: Mapping[str, object], place: str = "context") -> str:
    """Return the engine that must answer; empty: the server's choice.

    Args:
        context: The context of the query, or the properties of a driver.
        place: Its name in errors.

    Raises:
        InvalidRequest: There is no such engine.
    """
    engine = context.get("engine")
    if engine is None or engine == "":
        return ""
    if isinstance(engine, str) and engine in ENGINES:
        return engine
    raise InvalidRequest(
        f"unknown engine {engine!r:.40}: use one of {', '.join(ENGINES)}", place=f"{place}.engine"
    )


def uses_cache_in(context: Mapping[str, object]) -> bool:
    """Return whether an answer may be kept, and a kept one be used.

    Raises:
        InvalidRequest: The key is not true or false.
    """
    value = context.get("useResultLevelCache")
    if value is None:
        return True
    if isinstance(value, str) and value.lower() in _FLAGS:  # as Druid's clients may send it
        return _FLAGS[value.lower()]
    if not isinstance(value, bool):
        raise InvalidRequest("must be true or false", place="context.useResultLevelCache")
    return value


def _flag(body: Mapping[str, object], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequest("must be true or false", place=name)
    return value


def _types(body: Mapping[str, object], *, header: bool) -> Sequence[TypeName]:
    """Return which names of the columns' types the header must contain."""
    kinds: list[TypeName] = []
    flags: Sequence[tuple[str, TypeName]] = (("typesHeader", "type"), ("sqlTypesHeader", "sqlType"))
    for name, kind in flags:
        if _flag(body, name):
            if not header:
                raise InvalidRequest("needs header, which must be true as well", place=name)
            kinds.append(kind)
    return kinds


def query_id_in(context: Mapping[str, object], name: str) -> str:
    """Return the client's id of the query, which becomes a header of the answer and a log field.

    Args:
        context: The context of the query.
        name: The key of the id.

    Raises:
        InvalidRequest: It cannot be a header.
    """
    given = context.get(name)
    if given is None or given == "":
        return ""
    if isinstance(given, str) and _QUERY_ID.fullmatch(given):
        return given
    raise InvalidRequest(
        f"{given!r:.40} cannot be the id of a query, because it is sent as a header: use 1 to 255"
        " visible ASCII characters, such as a UUID",
        place=f"context.{name}",
    )


def whole_number(context: Mapping[str, object], name: str, unit: str) -> int | None:
    """Return a whole number in the context of a query; None if it is 0 or missing.

    Raises:
        InvalidRequest: It is not such a number.
    """
    value = context.get(name)
    if value is None or value == 0:  # in Druid: no limit; here: the service's own limit
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(
            f"{value!r:.40} is not valid: use a whole number of {unit}, 0 for the limit of the"
            " server",
            place=f"context.{name}",
        )
    return value


def _parameters(given: object) -> Sequence[SqlValue]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise InvalidRequest("must be a list", place="parameters")
    # Of a statement that runs on after its request, they are kept.
    if len(given) > TOKENS_MAX:
        raise InvalidRequest(
            f"{len(given)} values are more than a statement can have ? ({TOKENS_MAX})",
            place="parameters",
        )
    characters = 0
    values: list[SqlValue] = []
    for number, one in enumerate(given):
        # Druid's form is {"type": "VARCHAR", "value": "x"}; a bare value has the type of its JSON.
        value = one.get("value") if isinstance(one, dict) else one
        if value is not None and not isinstance(value, str | int | float | bool):
            raise InvalidRequest(
                "must be a text, a number, true, false or null", place=f"parameters[{number}]"
            )
        characters += len(value) if isinstance(value, str) else 0
        if characters > TEXT_MAX:
            raise InvalidRequest(
                f"the texts have more than {TEXT_MAX} characters together: join a lookup"
                " datasource instead, or send several statements",
                place="parameters",
            )
        if isinstance(value, int) and not isinstance(value, bool) and not is_int64(value):
            raise InvalidRequest(
                f"{value} has more than 64 bits: write it as a text", place=f"parameters[{number}]"
            )
        if isinstance(one, dict) and one.get("type") is not None and value is not None:
            values.append(_typed(one["type"], value, f"parameters[{number}]"))
        else:
            values.append(value)
    return values


def _typed(kind: object, value: str | float, place: str) -> SqlValue:
    """Return the value of a parameter with a type; a number that is a time is in milliseconds."""
    name = kind.upper() if isinstance(kind, str) else ""
    forms = _PARAMETER_TYPES.get(name)
    if forms is None:
        names = ", ".join(_PARAMETER_TYPES)
        raise InvalidRequest(
            f"unknown type {kind!r:.40}: use one of {names}", place=f"{place}.type"
        )
    # In Python, True is an int.
    if not isinstance(value, forms) or (isinstance(value, bool) and bool not in forms):
        raise InvalidRequest(f"{value!r:.40} is not of the type {name}", place=f"{place}.value")
    if name not in _TIMES:
        return value
    try:
        ms = parse_time(value) if isinstance(value, str) else int(value)
        time = _EPOCH + dt.timedelta(milliseconds=ms)
    except InvalidRequest as error:
        raise InvalidRequest(str(error), place=f"{place}.value") from None
    except OverflowError:
        text = f"{value} ms is outside the years 0001 to 9999: check its unit, milliseconds"
        raise InvalidRequest(text, place=f"{place}.value") from None
    return time if name == "TIMESTAMP" else time.date()


def parameter_count(statement: str) -> int:
    """Return how many parameters a statement has."""
    if "?" not in statement:
        return 0
    return sum(token.text == "?" for token in statement_tokens(statement))


def describe_query(statement: str) -> str:
    """Return the statement that describes the columns of a query."""
    return f"{_DESCRIBE}{statement}"


def undescribed(error: InvalidRequest) -> InvalidRequest:
    """Return the error of a statement of `describe_query` with the places of the query itself."""

    def moved(found: re.Match[str]) -> str:
        return f"line 1, column {max(1, int(found[1]) - len(_DESCRIBE))}"

    if type(error) is not InvalidRequest:
        return error  # of access or quotas: it has no place
    return InvalidRequest(re.sub(r"\bline 1, column ([0-9]{1,9})\b", moved, str(error)))


def _check_bound(statement: str, count: int) -> None:
    wanted = parameter_count(statement)
    if wanted > count:
        given = f"{counted(count, 'parameter')} {'is' if count == 1 else 'are'} given"
        raise InvalidRequest(
            f"the statement has {wanted} ?, and {given}: list one value for each ? in the field"
            " parameters of the request body",
            place="parameters",
        )
