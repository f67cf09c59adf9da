"""The manual at `/docs`: the site that `scripts/manual` built into the package.

Access: the checks of hosts apply, as to every request of the port. Requests need no token, because
a browser cannot send one when a reader opens a page, and because the pages are the same in every
installation: they have no data, no options and no addresses of this one. They name the version of
Penstock.

The policy of the pages allows only files of this server, and no inline scripts and styles;
`scripts/manual/page_policy.py` makes the pages work with it.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import NotFound
from penstock.core.printable import quoted
from penstock.services.api.asgi import MANUAL

SITE: Final = Path(__file__).parents[1] / "site"

_SOURCES: Final = ("script", "style", "font", "connect", "worker", "manifest")
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in _SOURCES),
        "img-src 'self' data:",  # the theme's icons are in its styles
        *(f"{kind} 'none'" for kind in ("base-uri", "form-action", "frame-ancestors")),
    )
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A browser asks again each time, and gets a short answer if nothing has changed: files of the
    # next version have the same names.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}
# Not by the module `mimetypes`, whose table is the machine's.
MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".yaml": "text/plain; charset=utf-8",
}
_PACKED: Final = frozenset(MEDIA_TYPES) - {".png"}
_PACKED_BYTES_MIN: Final = 1_000
# Fast, because each answer is packed: 20 ms for the largest file.
_PACK_LEVEL: Final = 5
# No part of a path begins with a dot, so that none leads out of the folder.
_PATH: Final = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*[A-Za-z0-9_-][A-Za-z0-9._-]*")
_FRONT_PAGE: Final = "index.html"


class ManualRoutes:
    """The routes of the manual.

    Args:
        site: Folder of the built site; it may be missing.
    """

    def __init__(self, site: Path = SITE) -> None:
        self._site = site

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route(MANUAL, self.front), Route(MANUAL + "/{path:path}", self.file)]

    async def front(self, _request: Request) -> Response:
        """Lead to the front page: its links are relative to the folder.

        The address is relative, because a proxy may serve this port below a path.
        """
        return RedirectResponse(f"{MANUAL.removeprefix('/')}/", 308)

    def file(self, request: Request) -> Response:
        """Answer with a file of the site."""
        path: str = request.path_params["path"] or _FRONT_PAGE
        content = self._content(path)
        suffix = Path(path).suffix
        headers = dict(_HEADERS)
        tag = hashlib.sha256(content).hexdigest()[:32]
        is_packed = suffix in _PACKED and len(content) >= _PACKED_BYTES_MIN and _takes_gzip(request)
        if is_packed:
            tag += "-gzip"
            headers["Content-Encoding"] = "gzip"
        # The time of a file would not do: all files of a wheel have the same one, of any version.
        headers["ETag"] = f'"{tag}"'
        if tag in re.findall(r'"([^"]*)"', request.headers.get("if-none-match", "")):
            headers.pop("Content-Encoding", None)
            return Response(status_code=304, headers=headers)
        if is_packed:
            content = gzip.compress(content, _PACK_LEVEL, mtime=0)
        return Response(content, headers=headers, media_type=MEDIA_TYPES[suffix])

    def _content(self, path: str) -> bytes:
        if not (self._site / _FRONT_PAGE).is_file():
            raise NotFound(
                "this installation has no manual, because its checkout has not built it: run "
                "make docs there"
            )
        file = self._site / path
        if _PATH.fullmatch(path) and file.suffix in MEDIA_TYPES:
            try:
                return file.read_bytes()
            except OSError:
                pass
        raise NotFound(f"the manual has no page {quoted(path)}: its front page is {MANUAL}/")


def _takes_gzip(request: Request) -> bool:
    codings = request.headers.get("accept-encoding", "").replace(" ", "").lower().split(",")
    return "gzip" in codings
