"""TLS of servers: the options, the contexts of all ports, and the reload of changed certificates.

`server_context` checks the options against the files. `ServerTls` has the context for the next
connection, and replaces it after the files changed. Does not own when a connection changes to TLS
(`penstock.broker.tcp`, `penstock.broker.http_server.tls_gate`) nor the enforcement of
`Requirement`, which is done by the servers. Contexts of clients are in `penstock.core.tls_trust`.

Two rules are stricter than in NSQ: the minimum version is TLS 1.2, and if a client certificate is
requested, it is always verified, because an unverified one proves nothing.

Invariant: a context is never changed after it was returned, because OpenSSL does not allow that
while handshakes use it. So open connections keep the certificate that they began with, and files
that are incomplete or invalid change nothing.
"""

from __future__ import annotations

import enum
import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.core.threads import OnDeath, OwnedThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock

_logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 5.0
"""Interval at which the files are checked for changes."""

HANDSHAKE_S: Final = 10.0
"""Time limit of a handshake, after which the connection is closed."""

# For TLS 1.2: forward secrecy and authenticated encryption, as "intermediate" in
# https://wiki.mozilla.org/Security/Server_Side_TLS. TLS 1.3 has only such suites.
_SUITES: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_PROTOCOLS: Final = ("http/1.1",)


class Requirement(enum.StrEnum):
    """Which clients must use TLS. The names are NSQ's values of ``tls-required``, and ``remote``.

    With `REMOTE`, only connections over loopback may do without TLS: no other host and no other
    user of this host can read them.
    """

    NOBODY = "false"
    REMOTE = "remote"
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
        if self.client_certificates is not ClientCertificates.NONE:
            is_weak = self.required in {Requirement.NOBODY, Requirement.REMOTE}
            return Requirement.ALL if is_weak else self.required
        # Without a certificate, `REMOTE` has no effect: options refuse other addresses then.
        is_idle = self.certificate is None and self.required is Requirement.REMOTE
        return Requirement.NOBODY if is_idle else self.required

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files that the options name."""
        named = (self.certificate, self.key, self.root_ca)
        return tuple(one for one in named if one is not None)


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
    context.set_ciphers(_SUITES)
    context.set_alpn_protocols(list(_PROTOCOLS))
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


class ServerTls:
    """TLS of the ports of one process: the context of its next connection. Any thread.

    The mutex makes sure that only one thread loads files; the context is replaced in one step, so
    that event loops read it without waiting.

    Args:
        options: The options, with a certificate.
        clock: Measures the interval of the checks.
        before_look: Called before each check, on its thread; it may replace the files.

    Raises:
        InvalidRequest: As `server_context`.
    """

    def __init__(
        self,
        options: TlsOptions,
        clock: Clock | None = None,
        before_look: Callable[[], object] | None = None,
    ) -> None:
        self.options = options
        self._before_look = before_look
        self._clock = clock or SystemClock()
        self._mutex = threading.Lock()
        self._changed = threading.Condition()
        self._seen = _states(options.files)
        context = server_context(options)
        if context is None:
            raise InvalidRequest("TLS needs a certificate: specify its file", place="tls-cert")
        self._context = context
        self._thread = OwnedThread("certificates", self._look_on, on_death=OnDeath.RESTART)

    @classmethod
    def of(cls, options: TlsOptions, clock: Clock | None = None) -> ServerTls | None:
        """Return the TLS of these options; None if they have no certificate.

        Raises:
            InvalidRequest: As `server_context`.
        """
        if options.certificate is not None:
            return cls(options, clock)
        server_context(options)  # raises if other options need a certificate
        return None

    @property
    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        return self._context

    def start(self) -> None:
        """Begin to check the files every few seconds."""
        self._thread.start()

    def stop(self) -> None:
        """Stop checking."""
        self._thread.end(self._changed, LOOK_EVERY_S)

    def refresh(self) -> bool:
        """Load the files again if they changed; return whether new connections use them now.

        A pair that cannot be loaded is logged once, and the earlier one stays in use.
        """
        with self._mutex:
            states = _states(self.options.files)
            if states == self._seen:
                return False
            self._seen = states  # taken before the load, so that a later change is noticed
            try:
                context = server_context(self.options)
            except InvalidRequest as error:
                _logger.warning(
                    "changed TLS files are not used, and the earlier certificate stays in use: %s",
                    error,
                )
                return False
            assert context is not None
            self._context = context
        _logger.info("new connections use the changed TLS files: %s", ", ".join(self.options.files))
        return True

    def _look_on(self) -> None:
        while not self._thread.is_end_expected:
            with self._changed:
                if not self._thread.is_end_expected:
                    self._clock.wait(self._changed, LOOK_EVERY_S)
            if not self._thread.is_end_expected:
                if self._before_look is not None:
                    self._before_look()
                self.refresh()


def _states(files: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Return what changes when a file is replaced or written to; empty for a missing file."""
    return tuple(_state(Path(one)) for one in files)


def _state(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


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
