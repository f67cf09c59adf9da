"""Requests to one of several overlords: the leader answers, the others name the leader.

Owns the redirection and the two routes that return the leader, which the election determines.

    request to      /leader           /isLeader          all other paths of the overlord
    the leader      its own URL       200 leader: true   answered
    another one     the leader's URL  404 leader: false  307 to the leader
    no leader       404               404 leader: false  503, try again

A leader that has just begun answers 503 to requests that it cannot handle yet.
"""

from __future__ import annotations

from typing import Protocol

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import URL
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.core.errors import Unavailable
from penstock.core.http_errors import error_body, plain_body
from penstock.core.waits import WaitTable
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.indexer.request_parts import OWN, PREFIX
from penstock.services.membership.leases import no_leader

_NOBODY = "no overlord leads now"
_TRY_AGAIN = "try again in some seconds"


class Leadership(Protocol):
    """The part of `LeaderSelector` that this module uses."""

    @property
    def is_leader(self) -> bool:
        """Return whether this process leads."""
        ...

    def leader(self) -> str | None:
        """Return the leader's URL; may block. Raises Unavailable if it is unknown."""
        ...

    @property
    def waits(self) -> WaitTable:
        """Return why this process cannot lead now, such as a full disk of the metadata store."""
        ...


class LeaderOnly:
    """Passes requests below the overlord's prefix on only if this process leads.

    Args:
        app: The application that answers.
        leadership: The election.
        address: The URL of this process.
    """

    def __init__(self, app: ASGIApp, leadership: Leadership, address: str) -> None:
        self._app = app
        self._leadership = leadership
        self._address = address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or redirect it to the leader."""
        path = scope["path"] if scope["type"] == "http" else ""
        if not path.startswith((f"{PREFIX}/", f"{OWN}/")):
            await self._app(scope, receive, send)
            return
        endpoint = path.removeprefix(PREFIX)
        if endpoint in ("/leader", "/isLeader"):
            answer = await self._describe_leader(endpoint)
        elif self._leadership.is_leader:
            await self._app(scope, receive, send)
            return
        else:
            answer = await self._redirect(scope)
        await answer(scope, receive, send)

    async def _describe_leader(self, endpoint: str) -> Response:
        if endpoint == "/isLeader":
            leads = self._leadership.is_leader
            return JsonResponse({"leader": leads}, 200 if leads else 404)
        leader, _ = await self._leader()
        return PlainTextResponse(leader or "", 200 if leader else 404)

    async def _redirect(self, scope: Scope) -> Response:
        leader, silence = await self._leader()
        # The leader's name is still this process's if its term has just expired.
        if leader is None or leader == self._address:
            return JsonResponse(error_body(self._nobody(silence)), 503, {"Retry-After": "2"})
        # The path as received, still escaped: a datasource's name may contain an escaped slash.
        raw_path = scope.get("raw_path") or URL(scope=scope).path.encode()
        query = scope.get("query_string", b"")
        where = leader + raw_path.decode("ascii") + (f"?{query.decode('ascii')}" if query else "")
        text = f"this overlord does not lead: ask {leader}"
        return JsonResponse(plain_body(text, "notLeader"), 307, {"Location": where})

    def _nobody(self, silence: Unavailable | None) -> Unavailable:
        """Return the error for a request that no overlord answers, with its cause if known."""
        if silence is not None:
            reason = f"{silence.dependency.value}: {silence}"
            text = f"{_NOBODY}, because of {reason}: {_TRY_AGAIN}"
            return Unavailable(text, dependency=silence.dependency)
        return no_leader(_NOBODY, self._leadership.waits.all(), remedy=_TRY_AGAIN)

    async def _leader(self) -> tuple[str | None, Unavailable | None]:
        """Return the leader's URL, or why it is unknown."""
        try:
            return await run_in_threadpool(self._leadership.leader), None
        except Unavailable as error:
            return None, error
