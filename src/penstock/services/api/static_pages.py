"""Pages from files: the console at `/`, and the manual at `/docs`.

The console is built from the folder `console` of a checkout, and is committed. The manual is built
by `scripts/manual` into the package; `scripts/manual/page_policy.py` makes its pages work with the
policy.

Owns the headers of pages, their types, the check of paths, the packing, and the answer that nothing
has changed. Requests need no credential: the files are the same in every installation, and have no
data, no options and no addresses of this one. The policy of a page allows only files of this server
and no inline scripts and styles. The console asks the APIs of this port with the credential of the
browser: a session, or the kernel's word that it is a program of the server's own user.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import NotFound
from penstock.core.printable import quoted
from penstock.services.api.request_access import CONSOLE, MANUAL

SITE: Final = Path(__file__).parents[1] / "site"
BUNDLE: Final = Path(__file__).parents[1] / "console"

_HEADERS: Final = {
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
FRONT_PAGE: Final = "index.html"


def page_policy(sources: Mapping[str, str], frame_ancestors: str = "'none'") -> str:
    """Return a Content-Security-Policy that forbids everything but some kinds of sources.

    Args:
        sources: The allowed sources by kind, such as ``{"script": "'self'"}``.
        frame_ancestors: Pages that may show the page in a frame.
    """
    return "; ".join(
        (
            "default-src 'none'",
            *(f"{kind}-src {allowed}" for kind, allowed in sources.items()),
            "base-uri 'none'",
            "form-action 'none'",
            f"frame-ancestors {frame_ancestors}",
        )
    )


class StaticSite:
    """The files of one folder.

    Args:
        folder: The folder; it may be missing.
        policy: The Content-Security-Policy of each answer.
        name: Name of the site in errors, such as ``manual``.
        absent: The error if the folder has no front page, with the remedy.
        front: Path of the front page on this server, for errors.
    """

    def __init__(self, folder: Path, policy: str, *, name: str, absent: str, front: str) -> None:
        self._folder = folder
        self._headers = {"Content-Security-Policy": policy, **_HEADERS}
        self._name = name
        self._absent = absent
        self._front = front

    def answer(self, request: Request, path: str) -> Response:
        """Answer with a file.

        Args:
            request: The request.
            path: Path of the file below the folder; empty: the front page.

        Raises:
            NotFound: There is no such file.
        """
        path = path or FRONT_PAGE
        content = self._content(path)
        suffix = Path(path).suffix
        headers = dict(self._headers)
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
        if not (self._folder / FRONT_PAGE).is_file():
            raise NotFound(self._absent)
        file = self._folder / path
        if _PATH.fullmatch(path) and file.suffix in MEDIA_TYPES:
            try:
                return file.read_bytes()
            except OSError:
                pass
        raise NotFound(
            f"the {self._name} has no page {quoted(path)}: its front page is {self._front}"
        )


def _takes_gzip(request: Request) -> bool:
    codings = request.headers.get("accept-encoding", "").replace(" ", "").lower().split(",")
    return "gzip" in codings


_MANUAL_POLICY: Final = page_policy(
    {
        **dict.fromkeys(("script", "style", "font", "connect", "worker", "manifest"), "'self'"),
        "img": "'self' data:",  # the theme's icons are in its styles
    }
)
_NO_MANUAL: Final = (
    "this installation has no manual, because its checkout has not built it: run make docs there"
)


class ManualRoutes:
    """The routes of the manual.

    Args:
        site: Folder of the built site; it may be missing.
    """

    def __init__(self, site: Path = SITE) -> None:
        front = f"{MANUAL}/"
        self._site = StaticSite(site, _MANUAL_POLICY, name="manual", absent=_NO_MANUAL, front=front)

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
        return self._site.answer(request, request.path_params["path"])


_CONSOLE_POLICY: Final = page_policy(
    {
        **dict.fromkeys(("script", "style", "connect", "worker"), "'self'"),
        "img": "'self' data: blob:",
    }
)
_NO_CONSOLE: Final = "this installation has no console: install Penstock again from its wheel"


class ConsoleRoutes:
    """The routes of the console.

    Args:
        bundle: Folder of its files.
    """

    def __init__(self, bundle: Path = BUNDLE) -> None:
        self._site = StaticSite(
            bundle, _CONSOLE_POLICY, name="console", absent=_NO_CONSOLE, front="/"
        )

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/", self.page), Route(CONSOLE + "/{path:path}", self.file)]

    def page(self, request: Request) -> Response:
        """Answer with the page."""
        return self._site.answer(request, "")

    def file(self, request: Request) -> Response:
        """Answer with a file of the page."""
        return self._site.answer(request, request.path_params["path"])
