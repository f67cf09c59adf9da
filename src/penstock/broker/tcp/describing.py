"""Statistics of a connection for ``/stats``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.client_registry import ClientStatistics

if TYPE_CHECKING:
    from penstock.broker.tcp.connection import Connection
    from penstock.broker.tcp.consumer import Consumer

_NEW: Final = 0
_SUBSCRIBED: Final = 3
_CLOSING: Final = 4


def describe(connection: Connection) -> ClientStatistics:
    """Return the statistics of a connection."""
    session, consumer = connection.session, connection.consumer
    negotiated = session.negotiated
    permissions = session.permissions
    client_id, hostname = negotiated.client_id, negotiated.hostname
    return ClientStatistics(
        client_id=session.host if client_id is None else client_id,
        hostname=session.host if hostname is None else hostname,
        address=session.address,
        user_agent=negotiated.user_agent,
        connected_ms=session.connected_ms,
        state=_state(consumer),
        ready=0 if consumer is None else consumer.ready,
        in_flight=0 if consumer is None else consumer.in_flight,
        messages=0 if consumer is None else consumer.message_count,
        finished=0 if consumer is None else consumer.finish_count,
        requeued=0 if consumer is None else consumer.requeue_count,
        sample_rate=negotiated.sample_rate,
        deflate=negotiated.deflate,
        snappy=negotiated.snappy,
        topology_zone=negotiated.topology_zone,
        topology_region=negotiated.topology_region,
        published=session.published.copy(),
        tls=session.encryption,
        authorized=permissions is not None,
        identity="" if permissions is None else permissions.identity,
        identity_url="" if permissions is None else permissions.identity_url,
    )


def _state(consumer: Consumer | None) -> int:
    if consumer is None:
        return _NEW
    return _CLOSING if consumer.closing else _SUBSCRIBED
