"""`penstock topic redrive`: publish dead letters again, each once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

import typer

from penstock.core.errors import InvalidRequest, counted
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import confirm, echo, print_json, print_rows
from penstock.services.json_client import JsonClient
from penstock.services.json_values import objects, whole

_PREVIEW_COUNT = 20_000
_REASONS_SHOWN = 10


def add_to(topic_app: typer.Typer) -> None:
    """Add the command."""
    topic_app.command()(redrive)


@dataclass(slots=True)
class _Sum:
    """The sum of the answers to several requests."""

    redriven: Counter[str] = field(default_factory=Counter)
    already: int = 0
    skipped: int = 0
    reasons: list[dict[str, object]] = field(default_factory=list)

    def add(self, partition: int, answer: object) -> int:
        """Add an answer; return the offset at which the next request continues."""
        found = answer if isinstance(answer, dict) else {}
        targets = found.get("redriven")
        for target in targets if isinstance(targets, dict) else {}:
            self.redriven[str(target)] += whole(targets, target)
        self.already += whole(found, "already")
        self.skipped += whole(found, "skipped")
        for reason in objects(found, "reasons"):
            if len(self.reasons) < _REASONS_SHOWN:
                self.reasons.append({"partition": partition, **reason})
        return whole(found, "next_offset")


def redrive(
    name: Annotated[str, typer.Argument(help="Name of the topic with the dead letters.")],
    partition: Annotated[
        int | None,
        typer.Option("--partition", min=0, help="Only this stream partition. [default: all]"),
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option("--offset", min=0, help="Only the dead letter at this offset."),
    ] = None,
    contains: Annotated[
        str, typer.Option("--contains", help="Only messages whose body has this text.")
    ] = "",
    json_path: Annotated[
        str,
        typer.Option(
            "--json-path", help="Only messages with a value at this place, such as $.user.id."
        ),
    ] = "",
    equals: Annotated[
        str | None, typer.Option("--equals", help="Only messages with this value at --json-path.")
    ] = None,
    origin: Annotated[
        str, typer.Option("--from", help="Only dead letters that came from this topic.")
    ] = "",
    to: Annotated[
        str,
        typer.Option("--to", help="Topic to publish to. [default: the one each came from]"),
    ] = "",
    confirm_topic: Annotated[
        str,
        typer.Option(
            "--confirm",
            help="The topic of --to again: also publish messages whose topic is not known.",
        ),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Publish dead letters to their topics again, each once.

    A dead letter that was redriven before is not published again. If the command or the broker is
    killed, repeat the command.
    """
    if offset is not None and partition is None:
        partition = 0
    url = CLI.found_broker_url()
    broker = JsonClient(url, token=CLI.token_for(url))
    wanted: dict[str, object] = {
        "topic": name,
        "contains": contains or None,
        "json_path": json_path or None,
        "equals": equals,
        "origin": origin or None,
        "to": to or None,
        "confirm": confirm_topic or None,
    }
    parts = objects(broker.get("/offsets", {"topic": name}), "partitions")
    if partition is not None:
        parts = [part for part in parts if part.get("partition") == partition]
        if not parts:
            raise InvalidRequest(f"topic {name} has no stream partition {partition}")
    places = [
        (whole(part, "partition"), whole(part, "earliest"), whole(part, "latest"))
        if offset is None
        else (whole(part, "partition"), offset, offset + 1)
        for part in parts
    ]
    if not yes:
        expected = _run(broker, {**wanted, "preview": 1, "count": _PREVIEW_COUNT}, places)
        targets = ", ".join(f"{count:,} to {to}" for to, count in expected.redriven.items())
        if targets:
            number = counted(expected.redriven.total(), "dead letter")
            confirm(f"Publish {number} again ({targets})?", yes=False)
    _print(_run(broker, wanted, places), as_json=as_json)


def _run(broker: JsonClient, wanted: dict[str, object], places: list[tuple[int, int, int]]) -> _Sum:
    """Send requests until each range (stream partition, start, end) is done."""
    total = _Sum()
    for partition, start, end in places:
        position = start
        while position < end:
            query = {**wanted, "partition": partition, "offset": position, "end": end}
            following = total.add(partition, broker.request("POST", "/topic/redrive", query=query))
            if following <= position:
                return total
            position = following
    return total


def _print(total: _Sum, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "redriven": dict(total.redriven),
                "already": total.already,
                "skipped": total.skipped,
                "reasons": total.reasons,
            }
        )
        return
    for target, count in total.redriven.items():
        echo(f"{counted(count, 'dead letter')} published to {target}")
    if not total.redriven:
        echo("no dead letter was published")
    if total.already:
        echo(f"{total.already:,} were redriven before")
    if total.skipped:
        echo(f"{total.skipped:,} cannot be redriven:")
        print_rows(total.reasons, as_json=False)
