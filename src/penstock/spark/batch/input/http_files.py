"""Files from HTTP, copied to this host before they are read: bounded, and complete or not at all.

Owns the restrictions: only HTTP and HTTPS, few redirects, a size limit, and only hosts that
`core.network_guard` allows, for each redirect. A password is sent only to
the host for which it was given, and no error shows the secrets of a URL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from penstock.core.errors import InvalidRequest, NotFound
from penstock.indexing.engine import InputUnavailable
from penstock.indexing.secrets import masked_url

if TYPE_CHECKING:
    import httpx

REDIRECTS_MAX: Final = 5
_CHUNK_BYTES: Final = 1 << 20
_TRY_AGAIN: Final = frozenset({408, 425, 429})


def fetch(
    url: str,
    target: Path,
    *,
    headers: Mapping[str, str],
    auth: tuple[str, str] | None,
    bytes_max: int,
    timeout_s: float,
    check: Callable[[], None],
    only_head: bool = False,
) -> int:
    """Copy the content of a URL to a file; return its size in bytes.

    Args:
        url: The URL.
        target: The file to create.
        headers: Further headers, for the first host.
        auth: User and password, for the first host.
        bytes_max: Size limit of the file.
        timeout_s: Time limit for each read.
        check: Called periodically; raises when the copy must end.
        only_head: Copy up to `bytes_max` of a larger file, instead of refusing it.

    Raises:
        NotFound: The file does not exist.
        InvalidRequest: The server refuses, redirects too often, or sends too much; or tasks must
            not connect to it.
        InputUnavailable: The server does not answer, or closes the connection early.
    """
    # Imported here: only inputs from HTTP need it.
    import httpx  # noqa: PLC0415

    from penstock.core.guarded_http import GuardedTransport  # noqa: PLC0415

    shown = masked_url(url)
    place, origin = url, urlsplit(url)
    try:
        transport = GuardedTransport(httpx.create_ssl_context())
        with httpx.Client(
            timeout=timeout_s, follow_redirects=False, trust_env=False, transport=transport
        ) as client:
            for _ in range(REDIRECTS_MAX + 1):
                parts = urlsplit(place)
                if parts.scheme not in {"http", "https"}:
                    raise InvalidRequest(
                        f"{shown} redirects to {masked_url(place)}: use http or https"
                    )
                ours = (parts.scheme, parts.netloc) == (origin.scheme, origin.netloc)
                with client.stream(
                    "GET",
                    place,
                    headers=dict(headers) if ours else {},
                    auth=auth if ours and auth is not None else None,
                ) as answer:
                    if answer.is_redirect:
                        place = urljoin(place, answer.headers.get("location", ""))
                        continue
                    _check_status(shown, answer.status_code)
                    return _save(shown, answer, target, bytes_max, check, only_head=only_head)
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"{shown} is not a supported URL: {error}") from None
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise InputUnavailable(f"{shown} does not answer correctly ({reason}): try again") from None
    raise InvalidRequest(f"{shown} redirects more than {REDIRECTS_MAX} times: give its last URL")


def _save(
    shown: str,
    answer: httpx.Response,
    target: Path,
    bytes_max: int,
    check: Callable[[], None],
    *,
    only_head: bool,
) -> int:
    size = 0
    # Unchanged: a file that is compressed by its name stays so; a content encoding is removed.
    with target.open("wb") as file:
        for data in answer.iter_bytes(_CHUNK_BYTES):
            check()
            size += len(data)
            if size > bytes_max and only_head:
                file.write(data[: bytes_max - size])
                return bytes_max
            if size > bytes_max:
                raise InvalidRequest(f"{shown} is larger than {bytes_max} bytes: split the file")
            file.write(data)
    return size


def _check_status(shown: str, status: int) -> None:
    if status == 200:
        return
    if status in {404, 410}:
        raise NotFound(f"{shown} does not exist (HTTP {status}): correct the input's uris")
    if status >= 500 or status in _TRY_AGAIN:
        raise InputUnavailable(f"{shown} cannot be read now (HTTP {status}): try again")
    raise InvalidRequest(f"{shown} is refused (HTTP {status}): check the URL and its permissions")
