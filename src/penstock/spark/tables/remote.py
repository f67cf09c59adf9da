"""Visible files, requested from a router: client of its `/penstock/v1/datasources/…/files`.

Owns one request and the parsing of its answer. For programs whose Spark runs on another host than
the metadata.
"""

from __future__ import annotations

import http.client
import json
from typing import Final
from urllib.parse import quote, urlsplit

from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.spark.tables.model import TableFile

TIMEOUT_S: Final = 30.0
_TEXT_SHOWN: Final = 500


def files_path(datasource: str) -> str:
    """Return the router's path for the files of a datasource."""
    return f"/penstock/v1/datasources/{quote(datasource, safe='')}/files"


def ask_router(url: str, datasource: str, token: str | None = None) -> tuple[TableFile, ...]:
    """Return the visible files of a datasource, including announced ones.

    Args:
        url: URL of the router, such as `http://127.0.0.1:8888`.
        datasource: Its name.
        token: Bearer token, if the router requires one.

    Raises:
        InvalidRequest: The URL or the token is wrong.
        NotFound: The datasource has no data.
        Unavailable: The router does not answer, or its answer has no files.
    """
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise InvalidRequest(f"invalid router address {url!r}: write http://HOST:PORT")
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(address.netloc, timeout=TIMEOUT_S)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        path = address.path.rstrip("/") + files_path(datasource)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        status, body = answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise Unavailable(
            f"{url} does not answer ({reason}): check that Penstock is running there (penstock up)"
        ) from error
    finally:
        connection.close()
    return _files(url, status, body)


def _files(url: str, status: int, body: bytes) -> tuple[TableFile, ...]:
    try:
        answer = json.loads(body)
        if status == 200:
            return tuple(TableFile.from_json(file) for file in answer["files"])
        text = str(answer["error"])
    except (ValueError, KeyError, TypeError):
        text = body[:_TEXT_SHOWN].decode(errors="replace")
    if status == 401:
        raise InvalidRequest(f'{url} requires a token: set option("token", …)')
    if status == 404:
        raise NotFound(text)
    raise Unavailable(f"{url} answered {status} without files of a datasource: {text}")
