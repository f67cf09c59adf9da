"""`penstock role …` and `penstock access check`: the rules, and explanations of decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.core.errors import PenstockError
from penstock.services.cli import exit_codes
from penstock.services.cli.output import echo, first_line, print_json, print_rows

if TYPE_CHECKING:
    from penstock.core.access.row_rules import RowRules

_SQL: Final = "/druid/v2/sql"
_COLUMNS_TIMEOUT_S: Final = 15.0

role_app = typer.Typer(
    help="Roles: sets of rules, which principals get in access.toml.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
access_app = typer.Typer(
    help="Checks of who may do what.", no_args_is_help=True, rich_markup_mode=None
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(role_app, name="role")
    app.add_typer(access_app, name="access")


@role_app.command("list")
def list_roles(as_json: Json = False) -> None:
    """List the roles."""
    from penstock.services.cli.access.local_access import LocalAccess  # noqa: PLC0415 - slow to import, not for every command

    access = LocalAccess.read()
    print_rows(
        [
            {
                "role": role.name,
                "ready-made": role.name not in access.policy.own_roles,
                "about": role.about,
                "allow": len(role.allow),
                "deny": len(role.deny),
            }
            for role in access.policy.roles.values()
        ],
        as_json=as_json,
        may_cut=["about"],
    )


@role_app.command("show")
def show_role(
    name: Annotated[str, typer.Argument(help="Name of the role.")], as_json: Json = False
) -> None:
    """Show the rules of a role, and which principals and groups have it."""
    from penstock.services.cli.access.local_access import LocalAccess, missing  # noqa: PLC0415 - slow to import, not for every command

    access = LocalAccess.read()
    role = access.policy.roles.get(name)
    if role is None:
        raise missing("role", name)
    users = (
        principal
        for principal in map(access.credentials.user_principal, access.credentials.users)
        if principal is not None
    )
    stored = (one.principal for one in access.credentials.stored_tokens().values())
    holders = {one.id for one in (*users, *stored) if name in access.roles_of(one)}
    holders |= {one for one, roles in access.policy.principals.items() if name in roles}
    groups = [
        f"group {group} of {issuer.name}"
        for issuer in access.policy.issuers
        for group, roles in issuer.groups
        if name in roles
    ]
    content = {
        "role": role.name,
        "about": role.about,
        "allow": [str(rule) for rule in role.allow],
        "deny": [str(rule) for rule in role.deny],
        "row_filters": {one.pattern: one.condition for one in role.row_filters},
        "masks": [
            {"datasources": one.pattern, "column": one.column, "mask": one.mask}
            for one in role.masks
        ],
        "quotas": role.quotas.shown(),
        "principals": sorted(holders),
        "groups": groups,
    }
    if as_json:
        print_json(content)
        return
    echo(f"{role.name}: {role.about}" if role.about else role.name)
    for kind in ("allow", "deny"):
        for rule in content[kind]:
            echo(f"  {kind:<5}  {rule}")
    for limit in role.row_filters:
        echo(f"  rows   of {limit.pattern} where {limit.condition}")
    for hidden in role.masks:
        echo(f"  mask   of {hidden.pattern}, column {hidden.column}: {hidden.mask}")
    for quota, most in role.quotas.shown().items():
        echo(f"  quota  {quota}: {most}")
    echo(f"  for    {', '.join((*sorted(holders), *groups)) or 'no principal'}")


@access_app.command("check")
def check(
    principal: Annotated[
        str, typer.Argument(help="KIND:NAME, such as user:alice.", metavar="PRINCIPAL")
    ],
    action: Annotated[
        str,
        typer.Argument(help="read, write, manage, run-code or read-external.", metavar="ACTION"),
    ],
    resource: Annotated[
        str, typer.Argument(help="KIND:NAME, such as topic:clicks.", metavar="RESOURCE")
    ],
    as_json: Json = False,
) -> None:
    """Explain whether a principal may do something; exit code 1 if it may not."""
    from penstock.core.access.principal import PrincipalKind, parse_principal  # noqa: PLC0415 - slow to import, not for every command
    from penstock.core.access.rules import Resource, parse_action  # noqa: PLC0415 - see above
    from penstock.core.clock import SystemClock  # noqa: PLC0415 - see above
    from penstock.services.cli.access.local_access import LocalAccess  # noqa: PLC0415 - see above

    named = parse_principal(principal, place="PRINCIPAL")
    wanted = parse_action(action, place="ACTION")
    target = Resource.parse(resource, place="RESOURCE")
    access = LocalAccess.read()
    found, remark = access.principal(named)
    decision = access.decide(found, wanted, target, SystemClock())
    allowed = decision.rows is not None  # with row filters or masks, SQL may read a datasource
    roles = access.roles_of(found)
    quotas = access.policy.quotas_of(found).shown()
    absent = "" if decision.limits is None else _absent_columns(target.name, decision.limits)
    if as_json:
        print_json(
            {
                "principal": found.id,
                "action": wanted,
                "resource": str(target),
                "allowed": allowed,
                "only_sql": allowed and not decision.allowed,
                "reason": decision.reason,
                "role": decision.role,
                "rule": decision.rule,
                "roles": roles,
                "quotas": quotas,
                "remark": remark,
                "absentColumns": absent,
            }
        )
    else:
        verb = "may" if allowed else "may not"
        echo(f"{found.id} {verb} {wanted} {target}: {decision.reason}")
        echo(f"its roles: {', '.join(roles) or 'none'}")
        if quotas:
            echo(f"its quotas: {', '.join(f'{name} {most}' for name, most in quotas.items())}")
        if found.kind is PrincipalKind.OIDC and any(one.groups for one in access.policy.issuers):
            echo("groups in its token may give it more roles: penstock role show ROLE lists them")
        if remark:
            echo(f"{remark}: no program can log in as {found.id}")
        if absent:
            echo(f"WARNING {absent}")
    if not allowed:
        raise typer.Exit(exit_codes.FAILED)


def _absent_columns(datasource: str, rules: RowRules) -> str:
    """Return which columns of a filter and masks a datasource does not have; empty: all exist.

    The running server knows the columns.
    """
    from penstock.core.access.row_rules import absent_columns  # noqa: PLC0415 - slow to import, not for every command
    from penstock.services.cli.command_options import CLI  # noqa: PLC0415 - see above

    name = '"' + datasource.replace('"', '""') + '"'
    try:
        answer = CLI.api(_COLUMNS_TIMEOUT_S).post(_SQL, {"query": f"DESCRIBE {name}"})
    except PenstockError as error:  # narrow: the decision is known without the columns
        return f"the columns of {datasource} are not checked: {first_line(str(error))}"
    rows = answer if isinstance(answer, list) else []
    columns = [str(one["col_name"]) for one in rows if isinstance(one, dict) and "col_name" in one]
    absent = absent_columns(rules, columns)
    return absent.text(datasource, columns) if absent else ""
