"""The settings of a Kafka client that a spec may contain, and their conversion. Pure.

A spec comes from outside, and some settings make a client run commands, load libraries or read
files, so only settings from a list of safe ones are accepted. Secrets are given as references,
which are resolved only where the client runs. Only settings that are never shown may be references.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.core.network_guard import NetworkDestination, url_destination
from penstock.core.secret_names import is_reference
from penstock.indexing.secrets import may_be_secret
from penstock.indexing.specs.sources.secret_values import EnvironmentSecret
from penstock.indexing.specs.sources.secret_values import resolved as secret_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.storage.secrets.secret_sources import Secrets

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
    "druid.dynamic.config.provider": "set each as secret://NAME",
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
_SERVERS: Final = "bootstrap.servers"
_TOKENS: Final = "sasl.oauthbearer.token.endpoint.url"
_PORT: Final = 9092


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
        is_named = isinstance(value, EnvironmentSecret) or is_reference(value)
        if is_named and not may_be_secret(ours):
            text = f"{name} must not name a secret, because errors and logs show its value"
            raise InvalidRequest(text, place=PLACE)
        if ours == _CA and isinstance(value, str) and not is_named and "-----BEGIN" not in value:
            # The client takes this word for the system's certificates, and other text for errors.
            raise InvalidRequest(f"{name} must be the text of certificates in PEM", place=PLACE)
        found[ours] = value
    level = found.setdefault(_ISOLATION, READ_COMMITTED)
    if level not in _ISOLATIONS:
        text = f"{_ISOLATION} must be {' or '.join(_ISOLATIONS)}"
        raise InvalidRequest(text, place=PLACE)
    return found


def resolved(given: Mapping[str, Setting], secrets: Secrets) -> Settings:
    """Return settings in the client's form, with the values of secrets.

    Raises:
        InvalidRequest: A secret has no value here.
        CorruptData: The file of sealed secrets is damaged.
        Unavailable: The command that prints a secret fails.
    """
    return tuple((name, _text(name, given[name], secrets)) for name in sorted(given))


def destinations(settings: Mapping[str, str]) -> Iterator[NetworkDestination]:
    """Yield the hosts to which settings, as `resolved` returns them, make the client connect.

    Raises:
        InvalidRequest: An address is invalid.
    """
    for part in settings.get(_SERVERS, "").split(","):
        if server := part.strip():
            _, separator, rest = server.partition("://")
            yield url_destination(f"kafka://{rest if separator else server}", _PORT)
    if url := settings.get(_TOKENS):
        yield url_destination(url)


def _text(name: str, value: Setting, secrets: Secrets) -> str:
    if isinstance(value, EnvironmentSecret) or (isinstance(value, str) and may_be_secret(name)):
        found = secret_value(value, secrets, f"{PLACE}.{name}")
        if name == _CA and "-----BEGIN" not in found:
            text = f"{name} must be the text of certificates in PEM"
            raise InvalidRequest(text, place=PLACE)
        return found
    return str(value).lower() if isinstance(value, bool) else str(value)
