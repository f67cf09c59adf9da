"""`penstock user …` and `penstock token …`: the credentials of an installation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.core.clock import SystemClock
from penstock.core.durations import parse_duration
from penstock.core.errors import InvalidRequest
from penstock.core.instants import format_time, parse_time
from penstock.services.cli.output import confirm, echo, print_json, print_rows, read_secret, warn

if TYPE_CHECKING:
    from penstock.services.cli.access.local_access import LocalAccess

user_app = typer.Typer(
    help="Users and their passwords.", no_args_is_help=True, rich_markup_mode=None
)
token_app = typer.Typer(help="Tokens of programs.", no_args_is_help=True, rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
UserName = Annotated[str, typer.Argument(help="Name of the user.")]
TokenName = Annotated[str, typer.Argument(help="Name of the token.")]
Roles = Annotated[
    list[str] | None,
    typer.Option("--role", "-r", help="A role; may be repeated. access.toml can give others."),
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(user_app, name="user")
    app.add_typer(token_app, name="token")


@user_app.command("add")
def add_user(name: UserName, role: Roles = None) -> None:
    """Add a user; the password is read from the terminal or from standard input."""
    from penstock.core.access.passwords import check_password, hash_password  # noqa: PLC0415 - slow to import, not for every command
    from penstock.core.access.principal import check_login_name  # noqa: PLC0415 - see above

    access = _read()
    check_login_name(name)
    roles = access.check_roles(role or [])
    password = check_password(read_secret("password", repeat=True))
    access.file.add_user(name, hash_password(password), roles)
    echo(f"added user {name}{_with_roles(roles)}")
    _warn_of_first(access)


@user_app.command("list")
def list_users(as_json: Json = False) -> None:
    """List the users."""
    from penstock.services.cli.access.local_access import shown_time  # noqa: PLC0415 - slow to import, not for every command

    access = _read()
    used = access.last_used()
    rows = []
    for name, user in sorted(access.credentials.users.items()):
        principal = access.credentials.user_principal(name)
        roles = [] if principal is None else access.roles_of(principal)
        rows.append(
            {
                "user": name,
                "roles": roles if as_json else ", ".join(roles),
                "created": shown_time(user.created),
                "last used": shown_time(used.get(f"user:{name}")),
            }
        )
    print_rows(rows, as_json=as_json, empty="no users; add one with: penstock user add NAME")


@user_app.command("remove")
def remove_user(name: UserName, yes: Yes = False) -> None:
    """Remove a user; all rights end within two seconds."""
    from penstock.services.cli.access.local_access import missing  # noqa: PLC0415 - slow to import, not for every command

    access = _read()
    if name not in access.credentials.users:
        raise missing("user", name)
    confirm(f"remove user {name}?", yes=yes)
    access.file.remove_user(name)
    echo(f"removed user {name}")
    _warn_of_leftovers(access, f"user:{name}")


@user_app.command("password")
def set_password(name: UserName) -> None:
    """Change a user's password; connections with the old one lose their rights."""
    from penstock.core.access.passwords import check_password, hash_password  # noqa: PLC0415 - slow to import, not for every command
    from penstock.services.cli.access.local_access import missing  # noqa: PLC0415 - see above

    access = _read()
    if name not in access.credentials.users:
        raise missing("user", name)
    password = check_password(read_secret("password", repeat=True))
    access.file.set_password(name, hash_password(password))
    echo(f"changed the password of user {name}")


@token_app.command("add")
def add_token(
    name: TokenName,
    role: Roles = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", help="Narrow its rights to a rule, such as 'write topic:a'; repeatable."
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", help="Time, or duration from now, such as 90d. [default: never]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a token and print it, once: only its hash is stored."""
    access = _read()
    roles = access.check_roles(role or [])
    expires_ms = None if expires is None else _expiry(expires)
    token = access.file.add_token(name, roles, None if scope is None else tuple(scope), expires_ms)
    if as_json:
        print_json({"token": name, "id": token.id, "secret": token.text})
    else:
        warn(f"added token {name}{_with_roles(roles)}; it is shown only now:")
        echo(token.text)
    _warn_of_first(access)


def _expiry(text: str) -> int:
    """Return the time at which a token expires, in epoch milliseconds."""
    now_ms = SystemClock().now_ms()
    try:
        expires_ms = now_ms + parse_duration(text)
    except InvalidRequest:  # narrow: it may be a time
        try:
            expires_ms = parse_time(text)
        except InvalidRequest:
            raise InvalidRequest(
                f"{text!r} is neither a duration nor a time: write 90d or 2027-01-31",
                place="--expires",
            ) from None
    if expires_ms <= now_ms:
        raise InvalidRequest(
            f"{format_time(expires_ms)} has passed: name a later time", place="--expires"
        )
    return expires_ms


@token_app.command("list")
def list_tokens(as_json: Json = False) -> None:
    """List the tokens, without their secrets."""
    from penstock.services.cli.access.local_access import shown_time  # noqa: PLC0415 - slow to import, not for every command

    access = _read()
    used = access.last_used()
    stored = access.credentials.stored_tokens()
    rows = []
    for token_id, token in sorted(access.credentials.tokens.items(), key=lambda item: item[1].name):
        roles = access.roles_of(stored[token_id].principal)
        scope = None if token.scope is None else list(token.scope)
        rows.append(
            {
                "token": token.name,
                "id": token_id,
                "roles": roles if as_json else ", ".join(roles),
                "scope": scope if as_json or scope is None else ", ".join(scope),
                "expires": shown_time(token.expires),
                "created": shown_time(token.created),
                "last used": shown_time(used.get(f"token:{token.name}")),
            }
        )
    print_rows(rows, as_json=as_json, empty="no tokens; add one with: penstock token add NAME")


@token_app.command("remove")
def remove_token(name: TokenName, yes: Yes = False) -> None:
    """Remove a token; all rights end within two seconds."""
    access = _read()
    if all(token.name != name for token in access.credentials.tokens.values()):
        access.file.remove_token(name)  # raises the error
    confirm(f"remove token {name}?", yes=yes)
    access.file.remove_token(name)
    echo(f"removed token {name}")
    _warn_of_leftovers(access, f"token:{name}")


def _read() -> LocalAccess:
    from penstock.services.cli.access.local_access import LocalAccess  # noqa: PLC0415 - slow to import, not for every command

    return LocalAccess.read()


def _with_roles(roles: tuple[str, ...]) -> str:
    return f" with {'the role' if len(roles) == 1 else 'the roles'} {', '.join(roles)}" * bool(
        roles
    )


def _warn_of_first(access: LocalAccess) -> None:
    if not access.is_configured:
        warn(
            "penstock: access is configured now: all programs need a user or a token; commands on"
            " this host use operator.token in the folder access"
        )


def _warn_of_leftovers(access: LocalAccess, principal_id: str) -> None:
    """Report what the next credential of this name would get."""
    if access.policy.principals.get(principal_id):
        warn(
            f"penstock: {access.folder.rules} still gives roles to {principal_id}: remove its line,"
            " or the next one of this name has them"
        )
