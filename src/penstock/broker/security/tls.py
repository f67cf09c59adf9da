"""TLS: the broker's options, and the context that serves it.

Owns the options and their check against the files. Does not own when a connection changes to TLS
(`penstock.broker.tcp`) nor the enforcement of `Requirement`, which is done by the servers.

Two rules are stricter than in NSQ: the minimum version is TLS 1.2, and if a client certificate is
requested, it is always verified, because an unverified one proves nothing.
"""

from __future__ import annotations

import enum
import ssl
from dataclasses import dataclass
from pathlib import Path

from penstock.core.errors import InvalidRequest


class Requirement(enum.StrEnum):
    """Which clients must use TLS. The names are NSQ's values of ``tls-required``."""

    NOBODY = "false"
    ALL_BUT_HTTP = "tcp-https"
    ALL = "true"


class ClientCertificates(enum.StrEnum):
    """Whether clients must present a certificate. The names are NSQ's policies."""

    NONE = "none"
    REQUIRE = "require"
    REQUIRE_VERIFY = "require-verify"


class TlsVersion(enum.StrEnum):
    """The minimum TLS version."""

    TLS_1_2 = "tls1.2"
    TLS_1_3 = "tls1.3"


_VERSIONS = {
    TlsVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2,
    TlsVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3,
}


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS options of the broker.

    Attributes:
        certificate: File of the server's certificate chain, PEM; None: TLS is not offered.
        key: File of its key, PEM, without a passphrase; None: it is in the file of the certificate.
        root_ca: File of the authorities that sign clients' certificates, PEM.
        client_certificates: Whether clients must present one.
        required: Which clients must use TLS.
        min_version: The minimum TLS version.
        plain_loopback: Serve HTTP without TLS on the loopback interface even if TLS is
            required, for the other processes of this host.
    """

    certificate: str | None = None
    key: str | None = None
    root_ca: str | None = None
    client_certificates: ClientCertificates = ClientCertificates.NONE
    required: Requirement = Requirement.NOBODY
    min_version: TlsVersion = TlsVersion.TLS_1_2
    plain_loopback: bool = False

    @property
    def requirement(self) -> Requirement:
        """Which clients must use TLS: all, if clients must present certificates, as in NSQ."""
        asks = self.client_certificates is not ClientCertificates.NONE
        return Requirement.ALL if asks and self.required is Requirement.NOBODY else self.required


def server_context(options: TlsOptions) -> ssl.SSLContext | None:
    """Return the TLS context of the servers; None: TLS is not offered.

    Raises:
        InvalidRequest: Options contradict each other, or a file is missing or has the wrong
            contents.
    """
    if options.certificate is None:
        if options.requirement is not Requirement.NOBODY or options.key or options.root_ca:
            raise InvalidRequest(
                "TLS is configured but needs a certificate: specify its file", place="tls-cert"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[options.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    _require_file(options.certificate, "tls-cert")
    if options.key is not None:
        _require_file(options.key, "tls-key")
    try:
        # An empty passphrase: otherwise OpenSSL prompts for that of an encrypted key.
        context.load_cert_chain(options.certificate, options.key, password="")
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"{options.certificate} and {options.key or 'the key in it'}: {error}: they must be a "
            "certificate chain and its key, in PEM, the key without a passphrase",
            place="tls-cert",
        ) from error
    if options.client_certificates is not ClientCertificates.NONE:
        _ask_for_certificates(context, options)
    return context


def _ask_for_certificates(context: ssl.SSLContext, options: TlsOptions) -> None:
    if options.root_ca is None:
        raise InvalidRequest(
            f"clients must present a certificate ({options.client_certificates}), which is "
            "verified: specify the file of the authorities that sign them",
            place="tls-root-ca",
        )
    _require_file(options.root_ca, "tls-root-ca")
    try:
        context.load_verify_locations(options.root_ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"{options.root_ca}: {error}: it must contain certificates in PEM", place="tls-root-ca"
        ) from error
    context.verify_mode = ssl.CERT_REQUIRED


def _require_file(path: str, option: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}", place=option) from error
