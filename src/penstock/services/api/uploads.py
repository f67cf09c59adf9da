"""Routes of uploads: files that a client sends to load them with a task.

Owns how a body is received: piece by piece onto the disk, with a time limit for each piece. Bounds,
expiry and layout belong to `storage.uploads`.

Invariant: an upload that ends in any other way than with an answer 200 leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.rules import Action, ResourceKind
from penstock.core.errors import Unavailable
from penstock.core.http_errors import BodyTooLarge
from penstock.core.whole_numbers import int64_of
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.request_access import access_of
from penstock.storage.uploads import UploadStore, UploadTooLarge

T = TypeVar("T")

UPLOADS: Final = "/penstock/v1/uploads"
PIECE_BYTES: Final = 1 << 20
"""Bytes that are written at once; the most that one upload keeps in memory, but for a packet."""
PIECE_TIMEOUT_S: Final = 60.0
"""Time limit for the next bytes of an upload; a client that sends nothing must not hold it open."""
_THREADS: Final = 8


async def receive(
    request: Request,
    write: Callable[[bytes], object],
    threads: CapacityLimiter,
    piece_timeout_s: float = PIECE_TIMEOUT_S,
) -> None:
    """Pass a body on, piece by piece, to a function that blocks.

    Raises:
        Unavailable: The client sends nothing for too long.
    """
    held = bytearray()
    pieces = request.stream()
    while True:
        try:
            with anyio.fail_after(piece_timeout_s):
                piece = await anext(pieces, None)
        except TimeoutError:
            raise Unavailable(
                f"no byte of the upload has arrived for {piece_timeout_s:g} s: try again"
            ) from None
        if piece is not None:
            held += piece
        if held and (piece is None or len(held) >= PIECE_BYTES):
            await to_thread.run_sync(write, bytes(held), limiter=threads)
            held.clear()
        if piece is None:
            return


class UploadRoutes:
    """The routes of uploads.

    Args:
        store: The uploads of this host. Only this process adds some.
        piece_timeout_s: Time limit for the next bytes of an upload.
    """

    def __init__(self, store: UploadStore, piece_timeout_s: float = PIECE_TIMEOUT_S) -> None:
        self._store = store
        self._piece_timeout_s = piece_timeout_s
        # A slow disk must not occupy the threads that answer other requests.
        self._threads = CapacityLimiter(_THREADS)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(UPLOADS, self.listed, methods=["GET"]),
            Route(UPLOADS, self.upload, methods=["POST"]),
            Route(UPLOADS + "/{upload_id}", self.delete, methods=["DELETE"]),
        ]

    def listed(self, request: Request) -> Response:
        """List the uploads of the principal, and the bounds."""
        access = access_of(request)
        access.require_some(Action.WRITE, ResourceKind.DATASOURCE)
        limits = self._store.limits
        return JsonResponse(
            {
                "uploads": [one.to_json() for one in self._store.all(access.principal.id)],
                "fileBytesMax": limits.file_bytes_max,
                "ownBytesMax": limits.owner_bytes_max,
            }
        )

    async def upload(self, request: Request) -> Response:
        """Store the body as an upload.

        Raises:
            InvalidRequest: The name is missing or not usable, or the body is empty.
            BodyTooLarge: The body is larger than an upload may be.
            Full: The principal, or all together, have as many uploads as they may.
            Unavailable: The disk is full, or the client sends nothing for too long.
        """
        access = access_of(request)
        access.require_some(Action.WRITE, ResourceKind.DATASOURCE)
        name = request.query_params.get("name", "")
        size = int64_of(request.headers.get("content-length", ""))
        try:
            begin = partial(self._store.begin, access.principal.id, name, size)
            writer = await self._run(begin)
            try:
                await receive(request, writer.write, self._threads, self._piece_timeout_s)
                found = await self._run(writer.finish)
            finally:
                # Also when the client has disconnected, which cancels this task.
                with anyio.CancelScope(shield=True):
                    await self._run(writer.abort)
        except UploadTooLarge as error:
            raise BodyTooLarge(str(error)) from None
        return JsonResponse(found.to_json())

    def delete(self, request: Request) -> Response:
        """Delete an upload of the principal.

        Raises:
            NotFound: It does not exist, or is another principal's.
        """
        access = access_of(request)
        access.require_some(Action.WRITE, ResourceKind.DATASOURCE)
        upload_id = request.path_params["upload_id"]
        owner = None if access.is_unlimited else access.principal.id
        self._store.use(upload_id, owner)
        self._store.delete(upload_id)
        return JsonResponse({"id": upload_id})

    async def _run(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=self._threads)
