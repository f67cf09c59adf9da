"""Validated parts of requests to the overlord's API: paths, query parameters and bodies.

Owns the checks that many routes share, the path prefix of the overlord's API and its largest
request size. Does not own the check of a whole body (`asgi`). An invalid part raises
`InvalidRequest` with its place, before anything was changed.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval
from penstock.core.names import DATASOURCE, LOOKED_UP, IsStored, known_name
from penstock.services.api.asgi import integer
from penstock.services.api.request_access import access_of

AUTHOR_HEADER: Final = "X-Druid-Author"
COMMENT_HEADER: Final = "X-Druid-Comment"

LIST_MAX: Final = 10_000
"""Maximum number of entries in one answer."""

NAMES_MAX: Final = 100_000
"""Maximum number of ids in one request."""

_HEADER_CHARACTERS_MAX: Final = 1_000


def texts(value: object, place: str, *, most: int = NAMES_MAX) -> list[str]:
    """Return a list of texts from a body, each once, in order.

    Raises:
        InvalidRequest: The value is not such a list, is empty, or too long.
    """
    if not isinstance(value, list) or not value:
        raise InvalidRequest("must be a list of at least one text", place=place)
    if len(value) > most:
        raise InvalidRequest(f"has {len(value)} entries: send at most {most} at once", place=place)
    for number, one in enumerate(value):
        if not isinstance(one, str):
            raise InvalidRequest("must be a text", place=f"{place}[{number}]")
    return list(dict.fromkeys(value))


def datasource_of(request: Request, is_stored: IsStored) -> str:
    """Return the stored spelling of the path's datasource. May query the database.

    Args:
        request: The request.
        is_stored: Returns whether something has exactly this name, valid or not.

    Raises:
        InvalidRequest: The name is invalid, and nothing is stored under it.
    """
    name: str = request.path_params["datasource"]
    return known_name(name, DATASOURCE, is_stored, place="datasource")


def stored_name_of(request: Request, parameter: str, is_stored: IsStored) -> str:
    """Return the stored spelling of another name in the path, as `datasource_of` does."""
    name: str = request.path_params[parameter]
    return known_name(name, LOOKED_UP, is_stored, place=parameter)


def interval_of(text: object, place: str = "interval") -> Interval:
    """Return an interval, written with `/`, or with `_` as in paths and queries of Druid.

    Raises:
        InvalidRequest: The value is not an interval.
    """
    if not isinstance(text, str):
        raise InvalidRequest("must be a text such as 2024-01-01/2024-01-02", place=place)
    try:
        return Interval.parse(text if "/" in text else text.replace("_", "/", 1))
    except InvalidRequest as error:
        raise InvalidRequest(str(error), place=place) from None


def query_interval(request: Request, name: str = "interval") -> Interval | None:
    """Return an interval from the query, None if it is missing. Raises as `interval_of`."""
    text = request.query_params.get(name)
    return None if text is None else interval_of(text, name)


def query_count(request: Request, *names: str, default: int, most: int = LIST_MAX) -> int:
    """Return a whole number of 1 or more from the query, by the first of the names that it has.

    Raises:
        InvalidRequest: The value is not such a number. More than `most` counts as `most`.
    """
    for name in names:
        number = integer(request, name)
        if number is not None:
            if number < 1:
                raise InvalidRequest(f"invalid number {number}: request 1 or more", place=name)
            return min(number, most)
    return default


def query_skip(request: Request) -> int:
    """Return how many entries of a list come before the wanted page.

    Raises:
        InvalidRequest: The value is not a whole number of 0 or more.
    """
    skip = integer(request, "skip") or 0
    if skip < 0:
        raise InvalidRequest(f"invalid number {skip}: request 0 or more", place="skip")
    return skip


def query_flag(request: Request, name: str) -> bool:
    """Return whether the query has a flag: without a value, or with any value but `false`."""
    return request.query_params.get(name, "false").lower() != "false"


def author_and_comment(request: Request) -> tuple[str, str]:
    """Return the author and comment of a change.

    The author is the principal. Druid's clients name another one in a header, which is not
    verified: it follows in parentheses.
    """
    author = access_of(request).principal.id
    if claimed := request.headers.get(AUTHOR_HEADER, "")[:_HEADER_CHARACTERS_MAX]:
        author = f"{author} ({AUTHOR_HEADER}: {claimed})"
    comment = request.headers.get(COMMENT_HEADER, "")
    return author, comment[:_HEADER_CHARACTERS_MAX]


PREFIX: Final = "/druid/indexer/v1"
OWN: Final = "/penstock/v1"
"""Prefix of the overlord's paths that Druid does not have."""
LOCKS: Final = f"{OWN}/locks"
TASKS: Final = f"{OWN}/tasks"
SUPERVISORS: Final = f"{OWN}/supervisors"

# Tasks announce and publish thousands of files at once when they read a backlog of years.
ACTION_BYTES_MAX: Final = 64 << 20
