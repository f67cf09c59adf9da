"""TLS of a Penstock's processes, from the options and the folder `tls` of the data folder.

Owns which files are used, as server and as client, the names that this host's certificate must
have, and the rule of addresses: a port that other hosts reach needs TLS and an authenticator, or
`--insecure`.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.broker.http_server.host_policy import EVERY_INTERFACE, normalized_host
from penstock.broker.security.tls import (
    ClientCertificates,
    Requirement,
    ServerTls,
    TlsOptions,
    TlsVersion,
)
from penstock.core.access.access_folder import AccessFolder
from penstock.core.access.credentials import CredentialFile
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.tls_trust import TRUST, TrustSettings, is_reachable
from penstock.services.host.data_folder import AUTHORITY, AUTHORITY_KEY, SERVER
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import TLS_FOLDER, PenstockOptions
from penstock.spark.connect.connect_address import ConnectAddress

_logger = logging.getLogger(__name__)


def tls_folder(options: PenstockOptions) -> Path:
    """Return the folder of the installation's authority and certificate."""
    return options.data_dir / TLS_FOLDER


def own_certificate(options: PenstockOptions, role: str = "") -> Path | None:
    """Return the file of a role's certificate in the folder, or else of the host's, if any."""
    folder = tls_folder(options)
    named = (f"{role}.pem", SERVER) if role else (SERVER,)
    return next((folder / one for one in named if _exists(folder / one)), None)


def server_options(options: PenstockOptions, role: str = "") -> TlsOptions:
    """Return TLS of the ports of a role's process; without a certificate, it has none."""
    folder = tls_folder(options)
    certificate, key, root_ca = options.tls_cert, options.tls_key, options.tls_root_ca
    policy = ClientCertificates(options.tls_client_auth_policy)
    if certificate is None and key is None:
        certificate = own_certificate(options, role)
    if policy is not ClientCertificates.NONE and root_ca is None and _exists(folder / AUTHORITY):
        root_ca = folder / AUTHORITY
    return TlsOptions(
        certificate=_text(certificate),
        key=_text(key),
        root_ca=_text(root_ca),
        client_certificates=policy,
        required=Requirement(options.tls_required),
        min_version=TlsVersion(options.tls_min_version),
        plain_loopback=True,  # for the other processes of this host
    )


def server_tls(options: PenstockOptions, clock: Clock, role: str = "") -> ServerTls | None:
    """Return TLS of a process's ports, with a certificate that is renewed before it expires.

    Args:
        options: The options of this Penstock.
        clock: Time.
        role: The role of the process, whose certificate it uses; empty: that of the host.

    Raises:
        InvalidRequest: Options contradict each other, or a file cannot be used.
        PenstockError: The certificate that is due cannot be issued.
    """
    folder = tls_folder(options)
    if options.tls_cert is not None or not _exists(folder / AUTHORITY_KEY):
        return ServerTls.of(server_options(options, role), clock)
    # Imported here, because most processes have no authority, and its library is large.
    from penstock.services.host.tls_authority import TlsAuthority  # noqa: PLC0415

    authority, names = TlsAuthority(folder, clock), certificate_names(options)
    failure_log = RateLimitedLog(_logger, clock)

    def renew() -> None:
        try:
            for one in dict.fromkeys(("", role)):
                authority.issue_if_due(names, one)
        except PenstockError as error:
            failure_log.warning("the certificate in %s cannot be renewed: %s", folder, error)

    if own_certificate(options, role) is None:
        authority.issue_if_due(names, role)  # without a certificate, an error ends the start
    else:
        renew()
    return ServerTls(server_options(options, role), clock, renew)


def use_trust(options: PenstockOptions, role: str = "") -> None:
    """Let the clients of this process trust the servers of this installation, and no others."""
    TRUST.set(trust_settings(options, role))


def trust_settings(options: PenstockOptions, role: str = "") -> TrustSettings:
    """Return TLS of this process as a client, with the certificate of its role."""
    folder = tls_folder(options)
    authorities = options.tls_ca
    # A certificate of the options comes from another authority than the folder's.
    if authorities is None and options.tls_cert is None and _exists(folder / AUTHORITY):
        authorities = folder / AUTHORITY
    own = own_certificate(options, role)
    has_tls = (authorities, own, options.tls_cert) != (None, None, None)
    return TrustSettings(_text(authorities), _text(own), has_tls or not options.insecure)


def certificate_names(options: PenstockOptions) -> tuple[str, ...]:
    """Return the hosts by which other processes and clients reach this host."""
    bound = (options.http.host, options.broker_http_address.host, options.broker_tcp_address.host)
    named = {one for one in bound if one not in EVERY_INTERFACE} | set(options.allowed_hosts)
    if options.broadcast_address is not None:
        named.add(options.broadcast_address)
    own = socket.gethostname()
    try:
        normalized_host(own)
    except InvalidRequest:  # no client can use such a name in a URL
        own = "localhost"
    return (own, *sorted(named - {"127.0.0.1", "::1", "localhost"}))


def require_protection(
    options: PenstockOptions, ports: Iterable[tuple[HostPort, str]]
) -> list[str]:
    """Check that ports which other hosts reach have TLS and an authenticator.

    Args:
        options: The options.
        ports: Addresses to listen on, each with its option.

    Returns:
        Warnings for the log and the user, if `--insecure` allows what they say.

    Raises:
        InvalidRequest: A port lacks protection.
    """
    warnings = list(_plain_sparks(options))
    if warnings and not options.insecure:
        option, _, text = warnings[0].partition(": ")
        raise InvalidRequest(
            f"{text}: add /;use_ssl=true to the address, for a server behind a proxy with TLS; or"
            " give --insecure, if every host and user of this network may read it",
            place=option,
        )
    warnings = [f"--insecure: {one}" for one in warnings]
    tls = server_options(options)
    for address, option in ports:
        if not is_reachable(address.host):
            continue
        for lack, remedy in _lacks(options, tls):
            if not options.insecure:
                raise InvalidRequest(
                    f"other hosts can reach {address}, and {lack}: {remedy}; or listen on"
                    " 127.0.0.1; or give --insecure, if every host and user of this network may do"
                    " everything here",
                    place=option,
                )
            warnings.append(f"--insecure: other hosts can reach {option} {address}, and {lack}")
    return warnings


def _plain_sparks(options: PenstockOptions) -> Iterator[str]:
    """Yield the addresses of Spark servers on other hosts that are reached without TLS."""
    for option, given in (
        ("--spark-connect", options.spark_connect),
        ("--query-connect", options.query_connect),
    ):
        if given is None:
            continue
        place = ConnectAddress.parse(given)
        uses_tls = place.parameters.get("use_ssl", "").lower() == "true"
        # PySpark's client shows a token under TLS only.
        if not uses_tls and "token" not in place.parameters and is_reachable(place.host):
            yield f"{option}: requests to Spark at {place.endpoint} are not encrypted"


def _lacks(options: PenstockOptions, tls: TlsOptions) -> Iterator[tuple[str, str]]:
    """Yield what an address that other hosts reach lacks, each with its remedy."""
    if tls.certificate is None:
        yield (
            "there is no certificate, so everyone on the network can read what they send",
            f"create one (penstock tls init --data-dir {options.data_dir}), or give --tls-cert",
        )
    elif tls.requirement not in {Requirement.REMOTE, Requirement.ALL}:
        yield (
            f"--tls-required {options.tls_required} lets them do without TLS",
            "omit that option, or set it to true",
        )
    shows_certificate = tls.client_certificates is not ClientCertificates.NONE
    if options.token is None and not shows_certificate and not has_access(options):
        yield (
            "they need no token or certificate",
            "give --token-file, or create a user or a token",
        )


def has_access(options: PenstockOptions) -> bool:
    """Return whether roles, users or tokens are configured, so that clients need a credential."""
    folder = AccessFolder(options.access_path)
    if _exists(folder.rules):
        return True
    try:
        known = CredentialFile(folder.credentials, SystemClock()).read()
    except PenstockError:  # narrow: servers then refuse every credential
        return True
    return bool(known.users or known.tokens)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder of another user
        return False
