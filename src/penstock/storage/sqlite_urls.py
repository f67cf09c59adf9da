"""URLs of SQLite files, in the form that SQLAlchemy reads."""

from __future__ import annotations

from os import PathLike, fspath
from urllib.parse import unquote, urlsplit

_SCHEME = "sqlite"


def sqlite_url(path: str | PathLike[str]) -> str:
    """Return the URL of a file, whose path may contain any character.

    SQLAlchemy decodes percent-encoded characters, and reads `?` as the end of the path.
    """
    return f"{_SCHEME}:///{fspath(path).replace('%', '%25').replace('?', '%3F')}"


def sqlite_path(url: str) -> str | None:
    """Return the path of the file that a metadata URL names.

    Args:
        url: A URL as SQLAlchemy reads it. `uri=true` in it means that its path is a URI of SQLite.

    Returns:
        The path; None if the URL is invalid, or names another kind of database.
    """
    # Imported here: SQLAlchemy is slow to import, and commands only make URLs.
    from sqlalchemy import make_url  # noqa: PLC0415
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return None
    path = parsed.database
    if parsed.drivername.partition("+")[0] != _SCHEME or not path:
        return None
    is_uri = "uri" in parsed.query and path.startswith("file:")
    return unquote(urlsplit(path).path) if is_uri else path
