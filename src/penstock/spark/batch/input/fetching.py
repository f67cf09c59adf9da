"""Files from HTTP, copied to this host before they are read: bounded, and whole or not at all.

Owns what may be asked of a server: HTTP and HTTPS alone, a few redirects, a largest size. A
password goes only to the host that it was given for, and no error shows what of a URL is secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from penstock.core.errors import InvalidRequest, NotFound
from penstock.indexing.engine import InputUnavailable
from penstock.indexing.masking import masked_url

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
) -> int:
    """Copy what is behind a URL into a file; return its bytes.

    Args:
        url: Where it is.
        target: The file to make.
        headers: More headers, for the first host.
        auth: User and password, for the first host.
        bytes_max: A larger file is refused.
        timeout_s: How long the server may be silent.
        check: Called now and then; raises when the copy should end.

    Raises:
        NotFound: Nothing is there.
        InvalidRequest: The server refuses, redirects too often, or sends too much.
        InputUnavailable: The server does not answer, or breaks off.
    """
    # Imported here: only inputs from HTTP need it.
    import httpx  # noqa: PLC0415

    shown = masked_url(url)
    place, origin = url, urlsplit(url)
    try:
        with httpx.Client(timeout=timeout_s, follow_redirects=False, trust_env=False) as client:
            for _ in range(REDIRECTS_MAX + 1):
                parts = urlsplit(place)
                if parts.scheme not in {"http", "https"}:
                    raise InvalidRequest(
                        f"{shown} leads to {masked_url(place)}: only http and https are read"
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
                    return _save(shown, answer, target, bytes_max, check)
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"{shown} is no URL that can be asked: {error}") from None
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise InputUnavailable(
            f"{shown} does not answer as it should ({reason}): try again"
        ) from None
    raise InvalidRequest(f"{shown} redirects more than {REDIRECTS_MAX} times: give its last URL")


def _save(
    shown: str, answer: httpx.Response, target: Path, bytes_max: int, check: Callable[[], None]
) -> int:
    size = 0
    # As it is sent: a file that is packed by its name stays so; the server's own packing goes.
    with target.open("wb") as file:
        for data in answer.iter_bytes(_CHUNK_BYTES):
            check()
            size += len(data)
            if size > bytes_max:
                raise InvalidRequest(f"{shown} is larger than {bytes_max} bytes: split the file")
            file.write(data)
    return size


def _check_status(shown: str, status: int) -> None:
    if status == 200:
        return
    if status in {404, 410}:
        raise NotFound(f"{shown} is not there (HTTP {status}): correct the input's uris")
    if status >= 500 or status in _TRY_AGAIN:
        raise InputUnavailable(f"{shown} cannot be read now (HTTP {status}): try again")
    raise InvalidRequest(f"{shown} is refused (HTTP {status}): check the URL and who may read it")
