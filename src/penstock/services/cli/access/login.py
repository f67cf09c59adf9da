"""`penstock login` and `penstock logout`: the token of this user for one server.

`penstock login --link` prints a link with which a browser logs in.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from penstock.core.clock import SystemClock
from penstock.core.errors import Forbidden, InvalidRequest, Unauthenticated
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import echo, read_secret, warn
from penstock.services.cli.server_tokens import Logins, is_loopback, origin_of
from penstock.services.json_client import JsonClient

_STATUS = "/status"
_TOKEN_BYTES_MAX = 2_000

Url = Annotated[str, typer.Argument(help="Address of the server's API, such as https://HOST:8888.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("login")(login)
    app.command("logout")(logout)


def login(
    url: Annotated[
        str | None,
        typer.Argument(help="Address of the server's API, such as https://HOST:8888."),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Send the token without TLS, so that others can read it."),
    ] = False,
    link: Annotated[
        bool,
        typer.Option("--link", help="Print a link with which a browser logs in, once."),
    ] = False,
    principal: Annotated[
        str | None,
        typer.Option(
            "--principal",
            help="With --link: the user or token whose rights the browser gets, such as user:alice"
            " [default: token:operator]",
        ),
    ] = None,
) -> None:
    """Keep a token for a server; it is read from the terminal or from standard input.

    Later commands with --url send it to this server only. A password is not a token. If the server
    has an authority of its own, name its certificate with --tls-ca FILE, here and in later
    commands. With --link, on the host of the server, print a link for a browser instead.
    """
    if link:
        _print_link(url, principal)
        return
    if principal is not None:
        raise InvalidRequest("--principal needs --link: a token belongs to one principal already")
    if url is None:
        raise InvalidRequest(
            "name the server, such as penstock login https://HOST:8888; for a browser, add --link"
        )
    server = origin_of(url)
    if server.startswith("http:") and not is_loopback(server) and not insecure:
        raise InvalidRequest(
            f"{server} has no TLS, so everyone on the way could read the token: use https, or add"
            " --insecure"
        )
    token = read_secret("token")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest("the token has a character that no token has: copy it again")
    if len(token) > _TOKEN_BYTES_MAX:
        raise InvalidRequest(
            f"the token has more than {_TOKEN_BYTES_MAX:,} characters: copy it again"
        )
    CLI.client_options()  # the server's authority, of --tls-ca
    try:
        JsonClient(server, token=token).get(_STATUS)
        note = ""
    except Unauthenticated as error:
        reason, _, _ = str(error).partition(": ")
        raise InvalidRequest(
            f"{server} does not accept this token ({reason}): copy it again, or create one on that"
            " host with penstock token add NAME; a password is not a token"
        ) from error
    except Forbidden:  # narrow: the token is valid, without this right
        note = ", which may not read its status"
    logins = Logins(os.environ, SystemClock())
    logins.keep(server, token)
    echo(f"kept a token for {server}{note} in {logins.path}")


def _print_link(url: str | None, principal: str | None) -> None:
    from penstock.core.access.browser_logins import LINK_MS  # noqa: PLC0415 - slow to import, not for every command
    from penstock.services.cli.access.local_access import LocalAccess  # noqa: PLC0415 - see above
    from penstock.services.host.login_links import OPERATOR, new_login_link  # noqa: PLC0415 - see above

    LocalAccess.read()  # refuses the folder of another user
    server = CLI.api_url() if url is None else origin_of(url)
    found = new_login_link(CLI.options(), server.rstrip("/"), SystemClock(), principal or OPERATOR)
    if found is None:
        warn("no login is needed, because access is not configured:")
        echo(server)
        return
    warn(f"open this link in a browser; it works once, within {LINK_MS // 60_000} minutes:")
    echo(found)


def logout(url: Url) -> None:
    """Forget the token that is kept for a server; it stays valid until it is removed there."""
    server = origin_of(url)
    Logins(os.environ, SystemClock()).drop(server)
    echo(f"forgot the token for {server}")
