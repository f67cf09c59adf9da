"""Where a stream is: what a spec says of it, as tasks are told. The model only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from penstock.core.errors import InvalidRequest
from penstock.indexing.spec.model import SpecModel

if TYPE_CHECKING:
    from penstock.indexing.spec import IoConfig


class StreamPlace(SpecModel):
    """Where a stream is: a topic of Penstock's own by its name, or a folder with a pattern."""

    type: Literal["topic", "folder"] = "topic"
    name: str = Field(min_length=1)
    pattern: str = "*"


def place_of(io: IoConfig) -> StreamPlace:
    """Return where a spec's stream is.

    Raises:
        InvalidRequest: It is in Kafka, which is not read yet.
    """
    if io.source == "kafka":
        raise InvalidRequest(
            "topics of Kafka are not read yet: have them copied into a topic of Penstock's own"
            " (with a flow, or a Kafka connector that speaks NSQ or HTTP), and leave out"
            " consumerProperties",
            place="spec.ioConfig.consumerProperties",
        )
    if io.source == "folder":
        return StreamPlace(type="folder", name=io.stream, pattern=io.filter or "*")
    return StreamPlace(name=io.stream)
