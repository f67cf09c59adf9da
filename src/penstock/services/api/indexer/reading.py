"""What requests hold beside the work: parts of paths, queries and bodies, each within a limit.

Owns the checks that are the same for many routes, but those of a whole body (`asgi`). Whatever is
wrong is an `InvalidRequest` that names its place; nothing was changed then.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval
from penstock.core.names import DATASOURCE, LOOKED_UP, IsStored, known_name
from penstock.services.api.asgi import integer

AUTHOR_HEADER: Final = "X-Druid-Author"
COMMENT_HEADER: Final = "X-Druid-Comment"

LIST_MAX: Final = 10_000
"""Most entries that one answer lists."""

NAMES_MAX: Final = 100_000
"""Most ids that one request names."""

_HEADER_CHARACTERS_MAX: Final = 1_000


def texts(value: object, place: str, *, most: int = NAMES_MAX) -> list[str]:
    """Return a list of texts out of a body, each once, in order.

    Raises:
        InvalidRequest: It is none, is empty, or too long.
    """
    if not isinstance(value, list) or not value:
        raise InvalidRequest("must be a list of texts, one at least", place=place)
    if len(value) > most:
        raise InvalidRequest(f"has {len(value)} entries: send {most} at once at most", place=place)
    for number, one in enumerate(value):
        if not isinstance(one, str):
            raise InvalidRequest("must be a text", place=f"{place}[{number}]")
    return list(dict.fromkeys(value))


def datasource_of(request: Request, is_stored: IsStored) -> str:
    """Return the spelling of the datasource that the path names. May ask the database.

    Args:
        request: The request.
        is_stored: Tells whether something has exactly this name, valid or not.

    Raises:
        InvalidRequest: It is not the name of a datasource, and nothing is stored under it.
    """
    name: str = request.path_params["datasource"]
    return known_name(name, DATASOURCE, is_stored, place="datasource")


def looked_up(request: Request, parameter: str, is_stored: IsStored) -> str:
    """Return the spelling of another name in the path, as `datasource_of` does."""
    name: str = request.path_params[parameter]
    return known_name(name, LOOKED_UP, is_stored, place=parameter)


def interval_of(text: object, place: str = "interval") -> Interval:
    """Return an interval, written with `/`, or with `_` as in paths and queries of Druid.

    Raises:
        InvalidRequest: It is none.
    """
    if not isinstance(text, str):
        raise InvalidRequest("must be a text such as 2024-01-01/2024-01-02", place=place)
    try:
        return Interval.parse(text if "/" in text else text.replace("_", "/", 1))
    except InvalidRequest as error:
        raise InvalidRequest(str(error), place=place) from None


def query_interval(request: Request, name: str = "interval") -> Interval | None:
    """Return an interval out of the query, None if it is not there. Raises as `interval_of`."""
    text = request.query_params.get(name)
    return None if text is None else interval_of(text, name)


def query_count(request: Request, *names: str, default: int, most: int = LIST_MAX) -> int:
    """Return a whole number of 1 or more out of the query, under the first name that is there.

    Raises:
        InvalidRequest: It is none. More than `most` is taken as `most`.
    """
    for name in names:
        number = integer(request, name)
        if number is not None:
            if number < 1:
                raise InvalidRequest(f"{number} cannot be shown: ask for 1 or more", place=name)
            return min(number, most)
    return default


def query_flag(request: Request, name: str) -> bool:
    """Return whether a flag stands in the query: alone, or as anything but `false`."""
    return request.query_params.get(name, "false").lower() != "false"


def author_and_comment(request: Request) -> tuple[str, str]:
    """Return who changes something and why, out of the headers that Druid's clients send."""
    author = request.headers.get(AUTHOR_HEADER, "")
    comment = request.headers.get(COMMENT_HEADER, "")
    return author[:_HEADER_CHARACTERS_MAX], comment[:_HEADER_CHARACTERS_MAX]
