"""The location of a stream, from a spec, for its tasks. Only the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from penstock.indexing import kafka_settings
from penstock.indexing.specs.sources.secret_values import EnvironmentSecret
from penstock.indexing.specs.spec_base import SpecModel

if TYPE_CHECKING:
    from penstock.indexing.specs import IoConfig


class StreamLocation(SpecModel):
    """Location of a stream: a topic of Penstock by its name, a topic of Kafka, or a folder.

    A folder has a `pattern` of names, and Kafka the `properties` of a client.
    """

    type: Literal["topic", "kafka", "folder"] = "topic"
    name: str = Field(min_length=1)
    pattern: str = "*"
    properties: dict[str, str | int | bool | EnvironmentSecret] = Field(
        default_factory=dict, repr=False
    )


def location_of(io: IoConfig) -> StreamLocation:
    """Return the location of a spec's stream.

    Raises:
        InvalidRequest: A spec must not set one of the settings of Kafka's client.
    """
    if io.source == "kafka":
        given = io.consumer_properties or {}
        return StreamLocation(
            type="kafka", name=io.stream, properties=kafka_settings.checked(given)
        )
    if io.source == "folder":
        return StreamLocation(type="folder", name=io.stream, pattern=io.filter or "*")
    return StreamLocation(name=io.stream)
