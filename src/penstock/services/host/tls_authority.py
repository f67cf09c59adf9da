"""The installation's own authority, and the certificates that it issues: the folder `tls`.

    tls/authority.crt   0600  certificate of the authority: clients and other hosts need a copy
    tls/authority.key   0600  its key: a user who has it can act as any server of the installation
    tls/ROLE.pem        0600  certificate of a role's processes on this host, followed by its key
    tls/server.pem      0600  certificate of this host for commands, and for roles without their own

The certificate of a role names it by the URI `penstock://ROLE`, besides the names of the host; that
of the host names no role. `core.tls_trust` and `broker.security.peers` check it. Certificate and
key are in one file, so that one step replaces both. A host without `authority.key` uses its
certificates but cannot renew them.

Owns lifetimes, names and the renewal. Changes of the folder hold a lock, because every process of a
host renews. Does not own when a process looks for a new certificate (`broker.security.tls`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.broker.http_server.host_policy import normalized_host
from penstock.core.access.private_file import locked, replace_private
from penstock.core.clock import Clock
from penstock.core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from penstock.core.tls_trust import role_uri
from penstock.services.host.data_folder import AUTHORITY, AUTHORITY_KEY, SERVER

_LABEL_CHARACTERS_MAX: Final = 63  # RFC 1035, section 2.3.4

AUTHORITY_DAYS: Final = 3_650
"""Lifetime of the authority; clients need a new copy afterwards."""
SERVER_DAYS: Final = 90
"""Lifetime of a certificate: short, because processes renew it, and it cannot be revoked."""
RENEW_DAYS: Final = 30
"""Remaining lifetime at which a certificate is renewed."""
_SERVER_LIFETIME: Final = dt.timedelta(days=SERVER_DAYS)
_EARLIER: Final = dt.timedelta(hours=1)  # for clients whose clock is behind
ALWAYS: Final = ("localhost", "127.0.0.1", "::1")
"""Names of every certificate, for clients of the same host."""


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """The certificate of a host.

    Attributes:
        names: Host names and addresses for which it is valid.
        expires_ms: End of its lifetime, in epoch milliseconds.
    """

    names: tuple[str, ...]
    expires_ms: int

    def is_due(self, now_ms: int, names: Iterable[str] = ()) -> bool:
        """Return whether it must be renewed: it expires soon, or lacks names."""
        left_ms = self.expires_ms - now_ms
        return left_ms < RENEW_DAYS * 86_400_000 or not set(names) <= set(self.names)


def certificate_file(folder: Path, role: str = "") -> Path:
    """Return the file of a role's certificate, or of the host's if the role is empty."""
    return folder / (f"{role}.pem" if role else SERVER)


class TlsAuthority:
    """The folder `tls` of a data folder. Any thread and process.

    Args:
        folder: The folder; created by `create`.
        clock: Time.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock

    @property
    def certificate(self) -> Path:
        """The file that clients need."""
        return self.folder / AUTHORITY

    @property
    def can_issue(self) -> bool:
        """Return whether the key of the authority is on this host."""
        return (self.folder / AUTHORITY_KEY).exists()

    def create(self) -> bool:
        """Create the authority if there is none; return whether it was created.

        Raises:
            Conflict: The folder has only one of the authority's two files.
            Unavailable: The folder cannot be written.
        """
        with self._locked():
            has = [(self.folder / name).exists() for name in (AUTHORITY, AUTHORITY_KEY)]
            if all(has):
                return False
            if any(has):
                there, lacks = (AUTHORITY, AUTHORITY_KEY) if has[0] else (AUTHORITY_KEY, AUTHORITY)
                raise Conflict(
                    f"{self.folder} has {there} without {lacks}: copy both from the host on which"
                    " the authority was made, or move the folder aside to make another authority"
                )
            key = ec.generate_private_key(ec.SECP256R1())
            made = self._authority_of(key)
            # The key first: a crash between both is reported above.
            replace_private(self.folder / AUTHORITY_KEY, _key_pem(key))
            replace_private(self.certificate, made.public_bytes(serialization.Encoding.PEM))
        return True

    def current(self, role: str = "") -> ServerCertificate | None:
        """Return the certificate of a role, or of this host if the role is empty.

        None if there is none, or an unreadable one.
        """
        try:
            found = x509.load_pem_x509_certificate(certificate_file(self.folder, role).read_bytes())
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, x509.ExtensionNotFound):
            return None
        listed = (
            *names.get_values_for_type(x509.DNSName),
            *map(str, names.get_values_for_type(x509.IPAddress)),
        )
        return ServerCertificate(listed, int(found.not_valid_after_utc.timestamp() * 1_000))

    def fingerprint(self) -> str:
        """Return the SHA-256 of the authority's certificate, in the form that tools print.

        Raises:
            NotFound: The authority is missing.
        """
        digest = self._load()[0].fingerprint(hashes.SHA256()).hex().upper()
        return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))

    def issue(self, names: Iterable[str] = (), roles: Iterable[str] = ()) -> ServerCertificate:
        """Replace the certificates of this host by new ones, which keep the names of the old.

        Returns that of the host.

        Args:
            names: Further host names and addresses; `*.NAME` matches every name below NAME.
            roles: Roles that get a certificate of their own.

        Raises:
            InvalidRequest: A name is invalid.
            NotFound: The authority, or its key, is not on this host.
            Unavailable: The folder cannot be written.
        """
        wanted = [_host(one) for one in names]
        with self._locked():
            issued = self._issue(wanted)
            for role in roles:
                self._issue(issued.names, role)
            return issued

    def issue_if_due(self, names: Iterable[str], role: str = "") -> ServerCertificate | None:
        """Issue a certificate if there is none, or it expires soon, or lacks names.

        The certificate of a role also has the names of the host's one.

        Args:
            names: Host names and addresses.
            role: The role; empty: that of the host.

        Returns:
            The new certificate, or None. Raises as `issue`.
        """
        wanted = tuple(_host(one) for one in names)
        if not self._is_due(wanted, role):  # the usual case needs no lock
            return None
        with self._locked():
            # Another process may have renewed it meanwhile.
            return self._issue(wanted, role) if self._is_due(wanted, role) else None

    def _is_due(self, names: tuple[str, ...], role: str) -> bool:
        found = self.current(role)
        if role:
            host = self.current()
            names = (*names, *(() if host is None else host.names))
        return found is None or found.is_due(self._clock.now_ms(), names)

    def _issue(self, names: Iterable[str], role: str = "") -> ServerCertificate:
        authority, signing_key = self._load()
        known = [one for one in (self.current(role), self.current()) if one is not None]
        wanted = (*(name for one in known for name in one.names), *ALWAYS, *names)
        alternative = [_general_name(one) for one in dict.fromkeys(wanted)]
        if role:
            alternative.append(x509.UniformResourceIdentifier(role_uri(role)))
        key = ec.generate_private_key(ec.SECP256R1())
        now = self._now()
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name("Penstock"))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(now - _EARLIER, authority.not_valid_before_utc))
            .not_valid_after(min(now + _SERVER_LIFETIME, authority.not_valid_after_utc))
            .add_extension(x509.SubjectAlternativeName(alternative), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
                critical=False,
            )
        )
        made = builder.sign(signing_key, hashes.SHA256())
        replace_private(
            certificate_file(self.folder, role),
            made.public_bytes(serialization.Encoding.PEM) + _key_pem(key),
        )
        issued = self.current(role)
        assert issued is not None
        return issued

    def _authority_of(self, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        now = self._now()
        # The serial number tells the authorities of several installations apart.
        name = _name(f"Penstock authority {x509.random_serial_number():040x}"[:31])
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLIER)
            .not_valid_after(now + dt.timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )

    def _load(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        try:
            found = x509.load_pem_x509_certificate(self.certificate.read_bytes())
            key = serialization.load_pem_private_key(
                (self.folder / AUTHORITY_KEY).read_bytes(), password=None
            )
        except FileNotFoundError as error:
            raise NotFound(
                f"{error.filename} does not exist: create an authority with penstock tls init, or"
                f" copy {AUTHORITY} and {AUTHORITY_KEY} from the host that has it"
            ) from None
        except OSError as error:
            raise Unavailable(f"{error.filename} cannot be read: {error.strerror}") from None
        except (ValueError, TypeError) as error:
            raise InvalidRequest(
                f"the authority in {self.folder} cannot be used: {error}"
            ) from None
        if (
            not isinstance(key, ec.EllipticCurvePrivateKey)
            or key.public_key() != found.public_key()
        ):
            raise InvalidRequest(
                f"{AUTHORITY} and {AUTHORITY_KEY} in {self.folder} do not belong together: copy"
                " both from the same host"
            )
        return found, key

    def _now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._clock.now_ms() // 1_000, dt.UTC)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)
        except OSError as error:
            raise Unavailable(f"{self.folder} cannot be written: {error.strerror}") from None
        with locked(self.folder, self._clock):
            yield


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(text: str) -> str:
    """Return a host name or address in the form that a certificate has; `*.NAME` is allowed.

    Raises:
        InvalidRequest: It is neither.
    """
    wildcard = "*." if text.startswith("*.") else ""
    name = normalized_host(text.removeprefix(wildcard))
    if any(len(label) > _LABEL_CHARACTERS_MAX for label in name.split(".")):
        raise InvalidRequest(
            f"{text!r} is not a host: a part between dots has more than {_LABEL_CHARACTERS_MAX}"
            " characters"
        )
    return wildcard + name


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
