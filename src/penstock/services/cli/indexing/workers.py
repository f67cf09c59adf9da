"""`penstock worker …`: workers, which run tasks."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.services.cli.command_options import CLI
from penstock.services.cli.indexing.followed_tasks import INDEXER, Json, named
from penstock.services.cli.output import echo, print_rows, without_empty
from penstock.services.json_values import objects, part

worker_app = typer.Typer(help="Workers.", no_args_is_help=True, rich_markup_mode=None)

Host = Annotated[str, typer.Argument(help="HOST:PORT of the worker, or its name.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(worker_app, name="worker")


@worker_app.command("list")
def list_workers(as_json: Json = False) -> None:
    """List the workers with their tasks."""
    found = objects(CLI.api().get(f"{INDEXER}/workers"))
    rows = [
        {
            "worker": part(one, "worker", "host"),
            "enabled": not part(one, "worker", "disabled"),
            "category": part(one, "worker", "category"),
            "slots": part(one, "worker", "capacity"),
            "used": one.get("currCapacityUsed"),
            "last end": one.get("lastCompletedTaskTime"),
            "blacklisted until": one.get("blacklistedUntil"),
        }
        for one in found
    ]
    table = without_empty(rows, "last end", "blacklisted until")
    print_rows(found if as_json else table, as_json=as_json, empty="no workers")


@worker_app.command()
def enable(host: Host) -> None:
    """Enable new tasks on a worker."""
    CLI.api().post(f"{INDEXER}/worker/{named(host)}/enable")
    echo(f"worker {host} is enabled")


@worker_app.command()
def disable(host: Host) -> None:
    """Disable new tasks on a worker; it finishes its current tasks."""
    CLI.api().post(f"{INDEXER}/worker/{named(host)}/disable")
    echo(f"worker {host} is disabled")
