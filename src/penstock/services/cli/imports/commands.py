"""The group `penstock import`."""

from __future__ import annotations

import typer

from penstock.services.cli.imports import nifi_swap, nsqd_folder

import_app = typer.Typer(
    help="Import data of other servers.", no_args_is_help=True, rich_markup_mode=None
)
nsqd_folder.add_to(import_app)
nifi_swap.add_to(import_app)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(import_app, name="import")
