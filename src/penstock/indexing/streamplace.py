"""Where a stream is: what a spec says of it, as tasks are told. The model only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from penstock.indexing import kafkasettings
from penstock.indexing.spec.model import SpecModel
from penstock.indexing.spec.sources.secretvalues import EnvironmentSecret

if TYPE_CHECKING:
    from penstock.indexing.spec import IoConfig


class StreamPlace(SpecModel):
    """Where a stream is: a topic of Penstock's own by its name, one of Kafka, or a folder.

    A folder has a `pattern` of names, and Kafka the `properties` of a client.
    """

    type: Literal["topic", "kafka", "folder"] = "topic"
    name: str = Field(min_length=1)
    pattern: str = "*"
    properties: dict[str, str | int | bool | EnvironmentSecret] = Field(
        default_factory=dict, repr=False
    )


def place_of(io: IoConfig) -> StreamPlace:
    """Return where a spec's stream is.

    Raises:
        InvalidRequest: A setting of Kafka's client is not for specs to set.
    """
    if io.source == "kafka":
        given = io.consumer_properties or {}
        return StreamPlace(type="kafka", name=io.stream, properties=kafkasettings.checked(given))
    if io.source == "folder":
        return StreamPlace(type="folder", name=io.stream, pattern=io.filter or "*")
    return StreamPlace(name=io.stream)
