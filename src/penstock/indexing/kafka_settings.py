"""The settings of a Kafka client that a spec may contain, and their conversion. Pure.

A spec comes from outside, and some settings make a client run commands, load libraries or read
files, so only settings from a list of safe ones are accepted. Secrets are given as text, or better
as environment variables, which are resolved only where the client runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.indexing.specs.sources.secret_values import EnvironmentSecret

if TYPE_CHECKING:
    from collections.abc import Mapping

Setting = str | int | bool | EnvironmentSecret
Settings = tuple[tuple[str, str], ...]
"""Names and values in the client's form; values may be secrets, so do not show them."""

PLACE: Final = "spec.ioConfig.consumerProperties"

# Names of the Java client that existing specs use, and librdkafka's names for them.
_RENAMED: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
    "sasl.mechanisms": "sasl.mechanism",
}
# Settings that Penstock controls itself, because it reads by offsets; Druid ignores most of them,
# too.
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
_REMEDIES: Final = {
    "debug": "set the level of the service's log instead",
    "druid.dynamic.config.provider": 'set each as {"type": "environment", "variable": …}',
    "sasl.jaas.config": "set sasl.username and sasl.password",
    "sasl.kerberos.kinit.cmd": "it would run a command: Kerberos is not supported",
    "sasl.kerberos.keytab": "it would read a file: Kerberos is not supported",
    "ssl.ca.location": "set the certificates themselves as ssl.ca.pem",
    "ssl.certificate.location": "set the certificate itself as ssl.certificate.pem",
    "ssl.key.location": "set the key itself as ssl.key.pem",
    "ssl.keystore.location": "set ssl.certificate.pem and ssl.key.pem",
    "ssl.truststore.location": "set the certificates themselves as ssl.ca.pem",
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
    """Return a spec's settings under the client's names, without those that have no effect.

    Raises:
        InvalidRequest: A setting is not allowed; the message contains no value.
    """
    found: dict[str, Setting] = {}
    for name, value in given.items():
        if name in _WITHOUT_EFFECT:
            continue
        ours = _RENAMED.get(name, name)
        if ours not in _ALLOWED:
            remedy = _REMEDIES.get(name, "leave it out")
            raise InvalidRequest(f"{name} must not be set in a spec: {remedy}", place=PLACE)
        if ours == _CA and isinstance(value, str) and "-----BEGIN" not in value:
            # The client takes this word for the system's certificates, and other text for errors.
            raise InvalidRequest(f"{name} must be the text of certificates in PEM", place=PLACE)
        found[ours] = value
    level = found.setdefault(_ISOLATION, READ_COMMITTED)
    if level not in _ISOLATIONS:
        text = f"{_ISOLATION} must be {' or '.join(_ISOLATIONS)}"
        raise InvalidRequest(text, place=PLACE)
    return found


def resolved(given: Mapping[str, Setting], environment: Mapping[str, str]) -> Settings:
    """Return settings in the client's form, with secrets from the environment.

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
