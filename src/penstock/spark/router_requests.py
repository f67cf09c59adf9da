"""Requests of Spark's data sources to a router, in Spark's processes.

Owns the connection, and the errors in terms of the options of a data source. Does not own paths,
forms of answers, or which requests are repeated.
"""

from __future__ import annotations

import http.client
import os
from dataclasses import dataclass, field
from typing import BinaryIO, Final
from urllib.parse import urlsplit

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.http_errors import ClientRemedies, error_of_answer
from penstock.core.tls_trust import TRUST, client_context

TIMEOUT_S: Final = 60.0
_BLOCK_BYTES: Final = 1 << 20
_TEXT_SHOWN: Final = 500
_REMEDIES: Final = ClientRemedies('set option("token", …)', 'option("url", …) names the router')


@dataclass(frozen=True, slots=True)
class RouterAddress:
    """A router, as the options of a data source name it.

    Attributes:
        url: Its URL, such as `http://127.0.0.1:8888`.
        token: Bearer token; None: it needs none.
        authorities: File of the authorities that sign its certificate, PEM; None: those of the
            machine.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    authorities: str | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: BinaryIO | bytes | None = None,
        body_type: str = "application/json",
    ) -> bytes:
        """Send a request, and return the body of the answer.

        Args:
            method: The method.
            path: The path, with a query if there is one.
            body: The body: bytes, or a file, which is sent from its beginning to its end.
            body_type: Its content type.

        Raises:
            InvalidRequest: The URL or the token is wrong, or the file of authorities is.
            Unavailable: The router does not answer.
            PenstockError: Another error of the router.
        """
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"invalid router address {self.url!r}: write http://HOST:PORT")
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            given = self.authorities
            tls = TRUST.context() if given is None else client_context(given)
            connection = http.client.HTTPSConnection(
                parts.netloc, timeout=TIMEOUT_S, context=tls, blocksize=_BLOCK_BYTES
            )
        else:
            connection = http.client.HTTPConnection(
                parts.netloc, timeout=TIMEOUT_S, blocksize=_BLOCK_BYTES
            )
        headers = {} if body is None else {"Content-Type": body_type}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if body is not None and not isinstance(body, bytes):
            headers["Content-Length"] = str(os.fstat(body.fileno()).st_size)
        try:
            connection.request(method, parts.path.rstrip("/") + path, body, headers)
            answer = connection.getresponse()
            status, content = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(
                f"{self.url} does not answer ({reason}): check that Penstock is running there"
                " (penstock up)"
            ) from error
        finally:
            connection.close()
        if status != 200:
            raise error_of_answer(status, content, f"{method} {self.url}", remedies=_REMEDIES)
        return content

    def unexpected(self, content: bytes) -> Unavailable:
        """Return the error for an answer that is not one of a router."""
        shown = content[:_TEXT_SHOWN].decode(errors="replace")
        return Unavailable(
            f"{self.url} is not a router of Penstock, so another server listens there:"
            f' set option("url", …) to the router; the answer begins with {shown!r}'
        )
