"""Options that reading and writing a topic have in common: its broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.broker.broker_client import BrokerClient
from penstock.core.errors import InvalidRequest
from penstock.core.http_errors import ClientRemedies
from penstock.core.tls_trust import client_context

FORMAT: Final = "penstock.topic"

_REMEDIES: Final = ClientRemedies(
    'set option("token", …)', 'option("url", …) names the HTTP port of the broker'
)


def topic_client(options: Mapping[str, str]) -> BrokerClient:
    """Return a client of the broker that the options name; they also have the topic.

    Raises:
        InvalidRequest: They do not, or the file of authorities cannot be used.
    """
    url, topic = options.get("url"), options.get("topic")
    if not url or not topic:
        raise InvalidRequest(
            f'{FORMAT}: set option("url", "http://127.0.0.1:4151") and option("topic", …)'
        )
    authorities = options.get("tlsCa")
    tls = None if authorities is None else client_context(authorities)
    return BrokerClient(url, token=options.get("token"), remedies=_REMEDIES, tls=tls)
