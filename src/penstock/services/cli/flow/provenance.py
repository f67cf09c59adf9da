"""`penstock flow lineage`, `penstock flow replay` and `penstock flow replay-many`."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Annotated

import typer

from penstock.core.errors import InvalidRequest, counted
from penstock.core.instants import format_time
from penstock.services.cli.flow.flow_client import Object, request_object
from penstock.services.cli.output import confirm, echo, print_json, print_rows
from penstock.services.json_values import objects, whole

PROVENANCE = "/penstock/v1/flow/provenance"
REPLAY = "/penstock/v1/flow/replay"
REPLAYS = "/penstock/v1/flow/replays"
_EXAMPLES_MAX = 20

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FlowFileId = Annotated[int, typer.Argument(metavar="FLOWFILE", help="Id of a FlowFile.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(lineage)
    app.command()(replay)
    app.command()(replay_many)


def lineage(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="Id of a FlowFile, or a message as TOPIC/PARTITION/OFFSET."
        ),
    ],
    depth: Annotated[
        int, typer.Option(min=0, max=20, help="Most steps to a parent or a child.")
    ] = 5,
    as_json: Json = False,
) -> None:
    """List the events of a FlowFile, its ancestors and its descendants."""
    found = request_object("GET", PROVENANCE, {**_query(what), "depth": depth})
    if as_json:
        print_json(found)
        return
    names = found.get("names")
    rows = [_row(one, names if isinstance(names, dict) else {}) for one in objects(found, "events")]
    print_rows(rows, as_json=False, empty="no events: older than the retention, or never there")
    if rows and not found.get("complete"):
        echo()
        echo("not everything is shown; --depth shows more generations")


def replay(
    flowfile: FlowFileId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Put a copy of a FlowFile into the queue in which it was last."""
    confirm(f"Replay FlowFile {flowfile}? Its effects happen again.", yes=yes)
    query: dict[str, object] = {"flowfile": flowfile, "key": uuid.uuid4().hex}
    done = request_object("POST", REPLAY, query)
    if as_json:
        print_json(done)
    else:
        echo(f"FlowFile {flowfile} is replayed as FlowFile {done.get('flowfile')}")


def replay_many(
    component: Annotated[
        str, typer.Option("--component", help="Only events of this processor, by its id or name.")
    ] = "",
    event: Annotated[
        str, typer.Option("--event", help="Only events of this kind, such as DROP.")
    ] = "",
    start: Annotated[str, typer.Option("--from", help="Only events since this time.")] = "",
    end: Annotated[str, typer.Option("--to", help="Only events before this time.")] = "",
    attribute: Annotated[
        str, typer.Option("--attribute", help="Only FlowFiles with this attribute, as NAME=VALUE.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Replay the FlowFiles that have certain events, each once.

    A FlowFile that was replayed before is not replayed again. If the command is killed, repeat it.
    """
    name, sign, value = attribute.partition("=")
    if attribute and not (name and sign):
        raise InvalidRequest(f"invalid --attribute {attribute!r}: write NAME=VALUE")
    wanted: dict[str, object] = {
        "component": component or None,
        "event": event or None,
        "from": start or None,
        "to": end or None,
        "attribute": name or None,
        "value": value or None,
    }
    if not yes:
        expected = _all_steps("GET", wanted)
        count = whole(expected.outcomes, "replayed")
        if not count:
            _print_outcomes(expected, as_json=as_json)
            return
        confirm(f"Replay {counted(count, 'FlowFile')}? Their effects happen again.", yes=False)
        # FlowFiles that came after the question are not part of the answer.
        wanted["until"] = expected.until
    _print_outcomes(_all_steps("POST", wanted), as_json=as_json)


@dataclass(slots=True)
class _Sum:
    """The sum of the answers to several steps."""

    outcomes: dict[str, int] = field(default_factory=dict)
    examples: list[Object] = field(default_factory=list)
    until: int = 0


def _all_steps(method: str, wanted: dict[str, object]) -> _Sum:
    """Send requests until the last step."""
    total = _Sum()
    query = dict(wanted)
    while True:
        found = request_object(method, REPLAYS, query)
        outcomes = found.get("outcomes")
        for name in outcomes if isinstance(outcomes, dict) else {}:
            total.outcomes[name] = total.outcomes.get(name, 0) + whole(outcomes, name)
        total.examples += objects(found, "examples")[: _EXAMPLES_MAX - len(total.examples)]
        total.until = whole(found, "until")
        if found.get("next") is None:
            return total
        query = {**wanted, "next": found["next"], "until": total.until}


def _print_outcomes(total: _Sum, *, as_json: bool) -> None:
    if as_json:
        print_json({"outcomes": total.outcomes, "examples": total.examples})
        return
    left = {name: count for name, count in total.outcomes.items() if name != "replayed"}
    echo(f"{counted(total.outcomes.get('replayed', 0), 'FlowFile')} replayed")
    if any(left.values()):
        echo(f"{sum(left.values()):,} not replayed:")
        print_rows(
            [
                {"count": left.get(str(one["outcome"]), 0), "why": one["reason"]}
                for one in _firsts(total.examples)
            ],
            as_json=False,
        )


def _firsts(examples: list[Object]) -> list[Object]:
    """Return the first example of each outcome."""
    return list({str(one["outcome"]): one for one in reversed(examples)}.values())[::-1]


def _query(what: str) -> dict[str, object]:
    if what.isascii() and what.isdecimal():
        return {"flowfile": what}
    topic, partition, offset = ([*what.rsplit("/", 2), "", ""])[:3]
    if not (topic and partition.isdecimal() and offset.isdecimal()):
        raise InvalidRequest(
            f"invalid {what!r}: write the id of a FlowFile, or TOPIC/PARTITION/OFFSET such as"
            " clicks/0/4711"
        )
    return {"topic": topic, "partition": partition, "offset": offset}


def _row(event: Object, names: dict[str, object]) -> Object:
    def named(field: str) -> str:
        found = str(event.get(field) or "")
        return str(names.get(found, found))

    target = ", into ".join(filter(None, [str(event.get("relationship") or ""), named("queue")]))
    return {
        "time": format_time(whole(event, "time")),
        "event": event.get("event"),
        "FlowFile": event.get("flowfile", ""),
        "processor": named("component"),
        "to": target,
        "what": _facts(event),
    }


def _facts(event: Object) -> str:
    facts = [str(event.get("reason") or "")]
    if event.get("topic"):
        at = f"/{event['partition']}/{event['offset']}" if "offset" in event else ""
        facts.append(f"{event['topic']}{at}")
    for name, word in (("parent_count", "parent"), ("child_count", "descendant")):
        if event.get(name):
            facts.append(counted(whole(event, name), word))
    return "; ".join(filter(None, facts))
