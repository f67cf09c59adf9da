"""Which settings of a Kafka client a spec may give, and what they become. Pure.

A spec comes from outside, and a client can be told to run commands, load libraries and read files:
so settings are taken from a list of those that cannot. Secrets are written as text, or better as
variables of the environment, which are looked up where the client is and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.indexing.spec.sources.secretvalues import EnvironmentSecret

if TYPE_CHECKING:
    from collections.abc import Mapping

Setting = str | int | bool | EnvironmentSecret
Settings = tuple[tuple[str, str], ...]
"""Names and values, as a client takes them; values may be secrets: never show them."""

PLACE: Final = "spec.ioConfig.consumerProperties"

# Names of Java's client that its users have in their specs, and librdkafka's for the same.
_RENAMED: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
    "sasl.mechanisms": "sasl.mechanism",
}
# What Penstock decides itself, by offsets; Druid passes over most of these too.
_WITHOUT_EFFECT: Final = frozenset(
    {
        "auto.offset.reset",
        "enable.auto.commit",
        "group.id",
        "group.instance.id",
        "heartbeat.interval.ms",
        "key.deserializer",
        "max.poll.interval.ms",
        "max.poll.records",
        "session.timeout.ms",
        "value.deserializer",
    }
)
_MENDS: Final = {
    "debug": "set the level of the service's log instead",
    "druid.dynamic.config.provider": 'give each as {"type": "environment", "variable": …}',
    "sasl.jaas.config": "give sasl.username and sasl.password",
    "sasl.kerberos.kinit.cmd": "it would run a command: Kerberos is not supported",
    "sasl.kerberos.keytab": "it would read a file: Kerberos is not supported",
    "ssl.ca.location": "give the certificates themselves as ssl.ca.pem",
    "ssl.certificate.location": "give the certificate itself as ssl.certificate.pem",
    "ssl.key.location": "give the key itself as ssl.key.pem",
    "ssl.keystore.location": "give ssl.certificate.pem and ssl.key.pem",
    "ssl.truststore.location": "give the certificates themselves as ssl.ca.pem",
}
_ALLOWED: Final = frozenset(
    {
        "bootstrap.servers",
        "broker.address.family",
        "broker.address.ttl",
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "enable.ssl.certificate.verification",
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "isolation.level",
        "max.partition.fetch.bytes",
        "metadata.max.age.ms",
        "metadata.recovery.strategy",
        "queued.max.messages.kbytes",
        "receive.message.max.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sasl.mechanism",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "socket.timeout.ms",
        "ssl.ca.pem",
        "ssl.certificate.pem",
        "ssl.cipher.suites",
        "ssl.curves.list",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.sigalgs.list",
    }
)
_ISOLATION: Final = "isolation.level"
READ_COMMITTED: Final = "read_committed"
_ISOLATIONS: Final = (READ_COMMITTED, "read_uncommitted")
_CA: Final = "ssl.ca.pem"


def checked(given: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return a spec's settings under the names that the client has; what has no effect is left out.

    Raises:
        InvalidRequest: One is not allowed; the message holds no value.
    """
    found: dict[str, Setting] = {}
    for name, value in given.items():
        if name in _WITHOUT_EFFECT:
            continue
        ours = _RENAMED.get(name, name)
        if ours not in _ALLOWED:
            mend = _MENDS.get(name, "leave it out")
            raise InvalidRequest(f"{name} is not for specs to set: {mend}", place=PLACE)
        if ours == _CA and isinstance(value, str) and "-----BEGIN" not in value:
            # The client takes this word for what the system trusts, and other text for mistakes.
            raise InvalidRequest(f"{name} must be the text of certificates in PEM", place=PLACE)
        found[ours] = value
    level = found.setdefault(_ISOLATION, READ_COMMITTED)
    if level not in _ISOLATIONS:
        text = f"{_ISOLATION} must be {' or '.join(_ISOLATIONS)}"
        raise InvalidRequest(text, place=PLACE)
    return found


def resolved(given: Mapping[str, Setting], environment: Mapping[str, str]) -> Settings:
    """Return settings as the client takes them, with the secrets that the environment holds.

    Raises:
        InvalidRequest: A variable is not set here.
    """
    return tuple((name, _text(given[name], environment)) for name in sorted(given))


def _text(value: Setting, environment: Mapping[str, str]) -> str:
    if isinstance(value, EnvironmentSecret):
        found = environment.get(value.variable)
        if found is None:
            text = f"the variable {value.variable} is not set: set it for overlord and workers"
            raise InvalidRequest(text, place=PLACE)
        return found
    return str(value).lower() if isinstance(value, bool) else str(value)
