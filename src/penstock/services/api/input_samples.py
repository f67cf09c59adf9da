"""`POST /penstock/v1/sample`: the first rows of an input, as a task would read them.

Owns the rights that a sample needs, which are those of a task that reads the input, and how many
run at once. Nothing is stored or changed.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final, Protocol

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.rules import Action, ResourceKind
from penstock.core.errors import Full
from penstock.indexing.required_access import required_by_input
from penstock.indexing.specs.input_sample import parse_sample_request
from penstock.indexing.specs.inputs import uploads_of
from penstock.services.api.asgi import report_invalid, status_of_invalid
from penstock.services.api.request_access import RequestAccess, access_of
from penstock.services.sampler_process import SampleAnswer
from penstock.storage.uploads import UploadStore

SAMPLE: Final = "/penstock/v1/sample"
RUNNING_MAX: Final = 2
"""Samples that run at a time; others wait. Each may take a core and 1 GiB of memory."""
WAITING_OF_ONE_MAX: Final = 4
"""Samples of one principal that run or wait."""


class SamplePort(Protocol):
    """Reads samples; `SamplerProcesses` is the implementation."""

    def sample(self, request: bytes) -> SampleAnswer:
        """Return the answer to a request. Blocks. May raise PenstockError."""
        ...


class SampleRoutes:
    """The route of samples.

    Args:
        sampler: Reads them.
        uploads: The uploads of this host.
    """

    def __init__(self, sampler: SamplePort, uploads: UploadStore) -> None:
        self._sampler = sampler
        self._uploads = uploads
        self._threads = CapacityLimiter(RUNNING_MAX)
        # Requests of each principal. On the event loop only.
        self._requests: Counter[str] = Counter()

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route(SAMPLE, self.sample, methods=["POST"])]

    async def sample(self, request: Request) -> Response:
        """Return the first rows of an input, and a proposal for the spec that loads it.

        Raises:
            InvalidRequest: The request is wrong, or the input cannot be read.
            Forbidden: The principal may not read the input, or write no datasource.
            NotFound: The input does not exist.
            Full: The principal has as many samples as it may.
        """
        report_invalid(request)
        access, body = access_of(request), await request.body()
        access.require_some(Action.WRITE, ResourceKind.DATASOURCE)  # before it waits for a place
        owner = access.principal.id
        if self._requests[owner] >= WAITING_OF_ONE_MAX:
            raise Full(
                f"{owner} waits for {WAITING_OF_ONE_MAX} samples, as many as it may: wait for them"
            )
        self._requests[owner] += 1
        try:
            read = partial(self._read, access, body)
            found = await to_thread.run_sync(read, limiter=self._threads)
        finally:
            self._requests[owner] -= 1
            if not self._requests[owner]:
                del self._requests[owner]
        status = status_of_invalid(request) if found.status == 400 else found.status
        return Response(found.body, status, media_type="application/json")

    def _read(self, access: RequestAccess, body: bytes) -> SampleAnswer:
        source = parse_sample_request(body).input_source
        for action, resource in required_by_input(source):
            access.require(action, resource)
        owner = None if access.is_unlimited else access.principal.id
        for upload in uploads_of([source]):
            self._uploads.use(upload, owner)
        return self._sampler.sample(body)
