"""PutDatasource: writes records to a datasource, exactly once, through its supervisor's topic.

Owns finding that topic. Does not own the publishing (`publish_topic`), nor the processing of
records by the supervisor's tasks.

It uses a topic instead of its own batch tasks. A task for each FlowFile would create a segment for
each, under a lock that blocks other tasks, and its rows would be queryable later than streamed
ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final
from urllib.parse import quote

import httpx
import orjson

from penstock.core.bearer import Bearer, authorization
from penstock.core.errors import Dependency, InvalidRequest, Unavailable
from penstock.core.http_errors import ClientRemedies, error_of_answer
from penstock.core.names import normalised
from penstock.core.printable import quoted
from penstock.core.tls_trust import TRUST
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import STR, ExpressionProperty, ProcessContext, Property
from penstock.flow.processors.failure import WRITES_REASON
from penstock.flow.processors.topics.publish_topic import POSITION, TopicPublisher
from penstock.flow.processors.topics.service_addresses import SERVICE

_PATH: Final = "/druid/indexer/v1/supervisor/"
_REMEDIES: Final = ClientRemedies(
    "set the property overlord_token", "the property overlord_url names the overlord or the router"
)
_KNOWN_MS: Final = 30_000
_KNOWN_MAX: Final = 1_000


class PutDatasource(TopicPublisher):
    """Writes records, one JSON document per line, to a datasource, exactly once.

    They go to the topic that the datasource's supervisor reads, so a supervisor must exist, and it
    must read JSON. The owner of the flow needs the right to publish to this topic. ConvertRecord
    converts other formats to JSON lines. The supervisor handles records that cannot be parsed.
    FlowFiles wait in the queue while broker or overlord are unavailable.
    """

    tags = ("datasource", "druid", "index", "records", "sink")
    writes_attributes: ClassVar[Mapping[str, str]] = {
        POSITION: "Number of bytes of a large FlowFile that were published before it failed.",
        **WRITES_REASON,
    }

    datasource = ExpressionProperty(
        STR, about="Name of the datasource, which is also the id of its supervisor."
    )
    overlord_url = Property(
        STR,
        default="",
        about="HTTP address of the overlord or the router; without it, that of this service.",
    )
    overlord_token = Property(
        STR, default="", sensitive=True, about="Token, if the overlord requires one."
    )

    _overlord: httpx.Client
    _overlord_url: str
    _topics: dict[str, tuple[str, int]]

    @property
    def by_lines(self) -> bool:
        """Whether each line is a message; always true."""
        return True

    def on_scheduled(self, context: ProcessContext) -> None:
        """Create the connections.

        Raises:
            InvalidRequest: An address is invalid.
        """
        super().on_scheduled(context)
        url, token = SERVICE.addresses().overlord_of(self.overlord_url, self.overlord_token)
        self._overlord_url = url
        self._overlord = overlord_client(url, token, self.timeout / 1000)
        self._topics = {}

    def on_stopped(self, context: ProcessContext) -> None:
        """Close the connections."""
        super().on_stopped(context)
        self._overlord.close()

    def destination(self, flowfile: FlowFile, now_ms: int) -> tuple[str, str]:
        """Return the topic of the datasource's supervisor, and an empty key.

        Raises:
            InvalidRequest: The supervisor does not exist, writes another datasource, or does not
                read JSON.
            Unavailable: The overlord does not answer.
        """
        datasource = self.datasource.of(flowfile, now_ms=now_ms)
        known = self._topics.get(datasource)
        if known is None or not known[1] <= now_ms < known[1] + _KNOWN_MS:
            if len(self._topics) >= _KNOWN_MAX:
                self._topics.clear()
            known = self._topics[datasource] = (self._topic_of(datasource), now_ms)
        return known[0], ""

    def _topic_of(self, datasource: str) -> str:
        if not datasource:
            raise InvalidRequest(
                f"datasource {self.datasource.text!r} is empty for this FlowFile: set the attribute"
            )
        try:
            answer = self._overlord.get(_PATH + quote(datasource, safe=""))
        except httpx.TransportError as error:
            raise Unavailable(
                f"the overlord at {self._overlord_url} does not answer ({type(error).__name__}): "
                "check that it is running",
                dependency=Dependency.OVERLORD,
            ) from None
        except httpx.InvalidURL:
            raise InvalidRequest(
                f"datasource {quoted(datasource)} has {len(datasource):,} characters, too many for "
                "a URL: correct the attribute"
            ) from None
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise InvalidRequest(
                f"datasource {datasource!r} has no supervisor: submit one that reads a topic"
            )
        if not answer.is_success:
            # The FlowFiles wait, even for a missing token: only the answer's text is used.
            request = f"GET {self._overlord_url}{_PATH}{datasource}"
            status, body = answer.status_code, answer.content
            refusal = error_of_answer(status, body, request, remedies=_REMEDIES)
            raise Unavailable(str(refusal), dependency=Dependency.OVERLORD)
        return _topic_in(answer.content, datasource)


def overlord_client(url: str, token: Bearer, timeout_s: float) -> httpx.Client:
    """Return a client of an overlord, which trusts the authorities of this process.

    Raises:
        InvalidRequest: The URL is invalid.
    """

    def authorized(request: httpx.Request) -> httpx.Request:
        request.headers.update(authorization(token))
        return request

    try:
        return httpx.Client(
            base_url=url, auth=authorized, timeout=timeout_s, verify=TRUST.context()
        )
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"overlord_url is not a valid URL: {error}") from None


def _topic_in(body: bytes, datasource: str) -> str:
    try:
        spec = orjson.loads(body)
    except orjson.JSONDecodeError:
        spec = None
    io, schema = _inside(spec, "ioConfig"), _inside(spec, "dataSchema")
    written = schema.get("dataSource") if isinstance(schema, dict) else None
    if isinstance(written, str) and normalised(written) != normalised(datasource):
        # The author of the flow has the right to write this datasource, and perhaps no other one.
        raise InvalidRequest(
            f"the supervisor {quoted(datasource)} writes the datasource {quoted(written)}: name a"
            " datasource whose supervisor has the same id"
        )
    if not isinstance(io, dict) or not isinstance(io.get("topic"), str):
        text = f"the supervisor of {datasource!r} does not read a topic: submit one that does"
        raise InvalidRequest(text)
    form = io.get("inputFormat")
    kind = form.get("type", "json") if isinstance(form, dict) else "json"
    if kind != "json":
        raise InvalidRequest(
            f"the supervisor of {datasource!r} reads {kind}, but this processor writes JSON: "
            "change its inputFormat"
        )
    return str(io["topic"])


def _inside(document: object, name: str) -> object:
    """Return a part of a spec, which is under `spec` or at the top level."""
    spec = document.get("spec", document) if isinstance(document, dict) else None
    return spec.get(name) if isinstance(spec, dict) else None
