"""`penstock tls`: an authority of the installation's own, and certificates from it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.core.clock import SystemClock
from penstock.core.tls_trust import ROLES
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import echo
from penstock.services.host.folder_permissions import private_data_folder
from penstock.services.host.tls_settings import certificate_names, tls_folder

if TYPE_CHECKING:
    from penstock.services.host.tls_authority import ServerCertificate, TlsAuthority

tls_app = typer.Typer(help="Create and renew certificates for TLS.", no_args_is_help=True)

Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        help="Host name or address by which clients reach this host; may be repeated. Loopback, the"
        " name of this host and the addresses in the options are always included.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(tls_app, name="tls")


@tls_app.command("init")
def init(host: Hosts = None) -> None:
    """Create an authority, and certificates of this host, in the folder tls of the data folder.

    One is for commands, and each role has its own, which names it. A host that runs one role alone
    needs only authority.crt and the file of this role, such as flow.pem.

    An authority that exists is kept, so this also makes the certificate of a further host, to which
    authority.crt and authority.key were copied.
    """
    authority, names = _authority(host)
    is_new = authority.create()
    issued = authority.issue(names, ROLES)
    echo(f"{'created' if is_new else 'kept'} the authority {authority.certificate}")
    _show(authority, issued)


@tls_app.command("renew")
def renew(host: Hosts = None) -> None:
    """Replace the certificates by new ones; running processes use them within seconds.

    They keep the names of the old ones. Processes do the same 30 days before it expires.
    """
    authority, names = _authority(host)
    _show(authority, authority.issue(names, ROLES))


def _authority(host: list[str] | None) -> tuple[TlsAuthority, tuple[str, ...]]:
    # Imported here, because no other command needs it and its library.
    from penstock.services.host.tls_authority import TlsAuthority  # noqa: PLC0415

    options = CLI.options()
    private_data_folder(options)
    return (
        TlsAuthority(tls_folder(options).absolute(), SystemClock()),
        (*certificate_names(options), *(host or ())),
    )


def _show(authority: TlsAuthority, issued: ServerCertificate) -> None:
    until = dt.datetime.fromtimestamp(issued.expires_ms / 1_000, dt.UTC).date()
    echo(f"certificate for {', '.join(issued.names)}")
    echo(f"  expires {until}; processes renew it 30 days before")
    echo(f"give clients the file {authority.certificate}")
    echo(f"  SHA-256 {authority.fingerprint()}")
    echo("  penstock --tls-ca authority.crt --url https://HOST:PORT ...")
    echo("  curl --cacert authority.crt https://HOST:PORT/status/health")
    echo(f"keep {authority.folder / 'authority.key'} secret: it makes servers that clients trust")
