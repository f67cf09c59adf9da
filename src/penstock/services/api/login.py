"""Logins of browsers: the page of a link, its button, and the end of a session.

    GET  /login?code=CODE   a page with one button; nothing changes
    POST /login             uses the code, and sets the cookie of a new session
    POST /logout            ends the session
    GET  /penstock/v1/me    the principal of a request, which needs a credential

Owns the pages and the cookie. `core.access.browser_logins` owns the codes and sessions,
`request_access` the requests in which a session counts.

The pages need no credential, because they are the way to one. A link is opened by a button and not
by its address alone, because mail programs and chats open links to show a preview, which would use
the code. The pages need no script, name whose rights the browser gets, and are loaded from this
server alone. Wrong codes are not counted: codes have 256 random bits, so none is found by trying,
and any web page can send wrong ones from the browser of a user. This must not stop their login.

The addresses in the pages are relative, and the cookie gets its path from the address at which the
browser reached the page, because a proxy may serve this port below a path.
"""

from __future__ import annotations

import base64
import hashlib
import html
from typing import Final
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.browser_logins import LINK_MS, SESSION_MS, UnknownCredential
from penstock.core.errors import InvalidRequest
from penstock.services.api.asgi import JsonResponse, bounded_body
from penstock.services.api.request_access import (
    LOGIN,
    LOGOUT,
    MANUAL,
    RequestAccess,
    access_of,
    session_cookie,
)

ME: Final = "/penstock/v1/me"

_BODY_BYTES_MAX: Final = 1_000
_FORM: Final = "application/x-www-form-urlencoded"
_COMMAND: Final = "penstock login --link"

_STYLE: Final = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:32rem;margin:15vh auto;padding:0 1rem;"
    "color:#222;background:#fff}button{font:inherit;padding:.5rem 1.5rem;cursor:pointer}"
    "code{background:#eee;padding:.1rem .3rem}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}code{background:#333}}"
)
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    # Not `no-referrer`, with which a browser sends `Origin: null` with the form.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class LoginRoutes:
    """The routes of logins."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(ME, self.me, methods=["GET"]),
            Route(LOGIN, self.show, methods=["GET"]),
            Route(LOGIN, self.log_in, methods=["POST"]),
            Route(LOGOUT, self.log_out, methods=["POST"]),
        ]

    def show(self, request: Request) -> Response:
        """Show the page of a link, or whether this browser is logged in."""
        access = access_of(request)
        if not access.control.is_configured:
            return _page("No login is needed", _manual_link())
        if "code" not in request.query_params:
            return _state_page(access)
        code = request.query_params["code"]
        logins = access.control.browser_logins
        link = None if logins is None else logins.link(code)
        if link is None:
            return _invalid()
        return _page(
            "Log in to Penstock",
            f"<p>This browser gets the rights of <code>{html.escape(link.principal)}</code> for up"
            f" to {SESSION_MS // 3_600_000} hours.</p>{_button(code)}",
        )

    def me(self, request: Request) -> Response:
        """Return the principal of the request, and whether it comes from a session to log out."""
        access = access_of(request)
        principal = access.principal
        return JsonResponse(
            {
                "principal": principal.id,
                "kind": principal.kind,
                "name": principal.name,
                "isSession": bool(access.session),
                "isLoginNeeded": access.control.is_configured,
            }
        )

    async def log_in(self, request: Request) -> Response:
        """Exchange a code for a session, and lead to the console."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
            raise InvalidRequest(f"the body must be a form ({_FORM}) with the field code")
        try:
            body = (await bounded_body(request, _BODY_BYTES_MAX)).decode("ascii")
            codes = parse_qs(body, strict_parsing=True, max_num_fields=2).get("code", [])
        except ValueError:  # narrow: translates
            codes = []
        if len(codes) != 1:
            raise InvalidRequest("the form must have the field code once")
        return await run_in_threadpool(self._log_in, request, codes[0])

    def _log_in(self, request: Request, code: str) -> Response:
        access = access_of(request)
        logins, audit = access.control.browser_logins, access.control.audit
        try:
            redeemed = None if logins is None else logins.redeem(code)
        except UnknownCredential as error:  # narrow: the link can be used later
            return _page("Try again", f"<p>{html.escape(str(error))}</p>{_button(code)}", 503)
        if redeemed is None:
            audit.failed_login("browser", "the link is not valid", access.origin)
            return _invalid()
        session, principal = redeemed
        audit.logged_in(principal, access.origin)
        # Relative, because a proxy may serve this port below a path.
        answer = RedirectResponse("./", 303, _HEADERS)
        _set_cookie(answer, request, session, SESSION_MS // 1_000)
        return answer

    def log_out(self, request: Request) -> Response:
        """End the session of this browser, and lead to the page of logins."""
        access = access_of(request)
        if access.session and access.control.browser_logins is not None:
            access.control.browser_logins.end(access.session)
        answer = RedirectResponse(LOGIN.removeprefix("/"), 303, _HEADERS)
        if access.session:
            _set_cookie(answer, request, "", 0)
        return answer


def _set_cookie(answer: Response, request: Request, session: str, seconds: int) -> None:
    # `HostPolicy` has checked the origin. It shows whether the browser uses TLS, also to a proxy.
    origin = request.headers.get("origin", "")
    is_tls = request.url.scheme == "https" or origin.startswith("https://")
    secure = "; Secure" if is_tls else ""
    answer.headers["Set-Cookie"] = (
        f"{session_cookie(request.scope)}={session}; Max-Age={seconds}; HttpOnly;"
        f" SameSite=Strict{secure}"
    )


def _state_page(access: RequestAccess) -> Response:
    if access.session:
        name = html.escape(access.principal.id)
        return _page(
            "Logged in",
            f"<p>This browser has the rights of <code>{name}</code>.</p>"
            f'<form method="post" action="logout"><button>Log out</button></form>{_manual_link()}',
        )
    return _page("Not logged in", _how_to())


def _button(code: str) -> str:
    return (
        '<form method="post" action="login"><input type="hidden" name="code"'
        f' value="{html.escape(code)}"><button>Log in</button></form>'
    )


def _invalid() -> Response:
    minutes = LINK_MS // 60_000
    about = f"<p>The link was used already, is older than {minutes} minutes, or is incomplete.</p>"
    return _page("This link is not valid", about + _how_to(), 403)


def _how_to() -> str:
    return f"<p>Run <code>{_COMMAND}</code> on the host of the server, and open the link.</p>"


def _manual_link() -> str:
    return f'<p><a href="{MANUAL.removeprefix("/")}/">The manual</a></p>'


def _page(title: str, body: str, status: int = 200) -> Response:
    content = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>{body}</html>"
    )
    return Response(content, status, _HEADERS, media_type="text/html; charset=utf-8")
