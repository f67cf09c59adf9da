"""The group `penstock flow`."""

from __future__ import annotations

import typer

from penstock.services.cli.flow import apply, flow_control, provenance
from penstock.services.cli.flow.queues import queue_app

flow_app = typer.Typer(
    help="Flows: processors and the queues between them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
apply.add_to(flow_app)
flow_control.add_to(flow_app)
provenance.add_to(flow_app)
flow_app.add_typer(queue_app, name="queue")


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(flow_app, name="flow")
