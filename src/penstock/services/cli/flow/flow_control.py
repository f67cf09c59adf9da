"""`penstock flow status`, `start`, `stop`, `run-once`, `terminate`, `state` and `bulletins`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from penstock.core.errors import NotFound, counted
from penstock.services.cli.flow.flow_client import Object, request_object
from penstock.services.cli.output import (
    confirm,
    echo,
    echo_lines,
    print_json,
    print_rows,
    wait_lines,
)
from penstock.services.json_values import objects, whole

_Row = Mapping[str, object]

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Target = Annotated[
    str | None,
    typer.Argument(help="Name or id of a component or group, such as Group/Read. [default: all]"),
]
Some = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name or id of a processor or group; / is everything."),
]
One = Annotated[str, typer.Argument(metavar="NAME", help="Name or id of a processor.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(status)
    app.command()(start)
    app.command()(stop)
    app.command("run-once")(run_once)
    app.command()(terminate)
    app.command()(state)
    app.command()(bulletins)


def start(target: Target = None, as_json: Json = False) -> None:
    """Start a component, a group or everything, now and after each restart."""
    _start_or_stop("start", target, "started", as_json=as_json)


def stop(target: Target = None, as_json: Json = False) -> None:
    """Stop a component, a group or everything, and wait until it has stopped."""
    _start_or_stop("stop", target, "stopped", as_json=as_json)


def _start_or_stop(verb: str, target: str | None, done: str, *, as_json: bool) -> None:
    answer = request_object("POST", f"/flow/{verb}", {"target": target})
    if as_json:
        print_json(answer)
        return
    ids = answer.get(done)
    count = len(ids) if isinstance(ids, list) else 0
    how = "started" if verb == "start" else "stopped"
    echo(f"{count:,} {'component is' if count == 1 else 'components are'} {how}")


def run_once(name: Some) -> None:
    """Trigger a stopped processor, or each one in a group, once; wait until they have ended."""
    answer = request_object("POST", "/flow/run-once", {"target": name})
    ran = len(_texts(answer, "ran"))
    echo(f"{name} ran once" if ran == 1 else f"{counted(ran, 'component')} ran once")
    _print_refused(answer)


def terminate(name: Some) -> None:
    """Abandon the threads of a processor that does not stop, or of all such ones in a group.

    Their FlowFiles are put back into their queues.
    """
    answer = request_object("POST", "/flow/terminate", {"target": name})
    ended = len(_texts(answer, "terminated"))
    if ended == 1:
        echo(f"{name} is stopped, its threads are abandoned")
    else:
        echo(f"{counted(ended, 'component')} stopped, their threads are abandoned")
    _print_refused(answer)


def _print_refused(answer: Object) -> None:
    for one in objects(answer, "refused"):
        echo_lines(str(one.get("reason")))


def state(
    name: One,
    clear: Annotated[
        bool, typer.Option("--clear", help="Delete all entries of a stopped processor.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a processor has stored, such as positions in files, or clear it."""
    if clear:
        confirm(f"Clear the state of {name}? It may read or send everything again.", yes=yes)
        answer = request_object("DELETE", "/flow/state", {"target": name})
        if as_json:
            print_json(answer)
        else:
            echo(f"{counted(whole(answer, 'cleared'), 'entry', 'entries')} cleared")
        return
    entries = request_object("GET", "/flow/state", {"target": name}).get("entries")
    found = entries if isinstance(entries, dict) else {}
    if as_json:
        print_json(found)
        return
    rows = [{"entry": entry, "value": value} for entry, value in sorted(found.items())]
    print_rows(rows, as_json=False, empty="no state", may_cut=("value",))


def bulletins(
    name: Annotated[
        str | None, typer.Argument(help="Only of this component, by name or id.")
    ] = None,
    after: Annotated[
        int, typer.Option("--after", min=0, help="Only bulletins after this number.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """List the latest warnings and errors of components."""
    names = {str(one.get("id")): str(one.get("name")) for one in _status("components")}
    component = None
    if name is not None:
        wanted = [one for one, called in names.items() if name in (one, called)]
        if not wanted:
            raise NotFound(f"there is no component {name!r} in the flow: see penstock flow status")
        component = wanted[0]
    answer = request_object("GET", "/flow/bulletins", {"after": after, "component": component})
    found = objects(answer, "bulletins")
    if as_json:
        print_json(found)
        return
    # As lines, like a log: messages are too long for a table, and may have several lines.
    for one in found:
        called = names.get(str(one.get("component")), one.get("component"))
        head = f"{one.get('number')}  {one.get('time')}  {one.get('level')}  {called}"
        echo(f"{head}: {one.get('message')}")
    if not found:
        echo("no bulletins")


def status(
    name: Annotated[
        str | None,
        typer.Argument(help="Only this component, connection or group, with everything in it."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the state of the flow: its components, and the FlowFiles in its connections."""
    answer = request_object("GET", "/flow/status")
    components, connections = objects(answer, "components"), objects(answer, "connections")
    if name is not None:
        components = _chosen(components, name)
        ids = {one.get("id") for one in components}
        connections = _chosen(connections, name) or [
            one for one in connections if {one.get("source"), one.get("destination")} & ids
        ]
        if not components and not connections:
            raise NotFound(f"there is no {name!r} in the flow: see penstock flow status")
    if as_json:
        print_json(answer | {"components": components, "connections": connections})
        return
    if name is None:
        echo(_head(answer))
        echo("")
    if components:
        rows = [component_row(one) for one in components]
        print_rows(rows, as_json=False, may_cut=("waits for", "type"))
        echo("")
    print_rows([connection_row(one) for one in connections], as_json=False, empty="no connections")
    for line in _notes(answer, components):
        echo(line)


def _status(part: str) -> list[Object]:
    return objects(request_object("GET", "/flow/status"), part)


def _chosen(found: list[Object], name: str) -> list[Object]:
    """Return the components of this name or id, or all in the group of this name."""
    plain = _plain(name.strip("/"))
    exact = [one for one in found if plain in (one.get("id"), _plain(str(one.get("name"))))]
    return exact or [one for one in found if _plain(str(one.get("name"))).startswith(f"{plain}/")]


def _plain(name: str) -> str:
    return "→".join(part.strip() for part in name.replace("->", "→").split("→"))


def _head(answer: Object) -> str:
    version, owner = answer.get("version"), str(answer.get("owner", ""))
    # The user who runs the server is not worth a word.
    acts = "" if owner.partition(":")[0] in {"", "owner"} else f", acts for {owner}"
    return (
        f"flow {answer.get('name')}{f' {version}' if version else ''}, "
        f"revision {whole(answer, 'revision')}{acts}: "
        f"{whole(answer, 'busyThreads')} of {whole(answer, 'threads')} threads busy, "
        f"{size(whole(answer, 'heapBytes'))} of {size(whole(answer, 'heapLimitBytes'))} of "
        "FlowFiles in memory"
    )


def component_row(one: Object) -> _Row:
    """Return a component's row of the table."""
    state, desired = one.get("state"), one.get("desired")
    return {
        "component": one.get("name"),
        "type": one.get("type") or one.get("kind"),
        "state": state if state == desired else f"{state} → {desired}",
        "waits for": one.get("waitsFor"),
        "tasks": one.get("activeTasks"),
        "runs": one.get("runs"),
        "failed": one.get("failures"),
        "in": one.get("in"),
        "out": one.get("out"),
        "next": str(one.get("nextFiring") or "").replace(".000Z", "Z"),
    }


def connection_row(one: Object) -> _Row:
    """Return a connection's row of the table."""
    return {
        "connection": one.get("name"),
        "queued": one.get("queued"),
        "size": size(whole(one, "queuedBytes")),
        "swapped": one.get("swapped"),
        "in sessions": one.get("unacknowledged"),
        "expired": one.get("expired"),
        "full": one.get("full"),
    }


def _notes(answer: Object, components: list[Object]) -> list[str]:
    """Return notes that need attention."""
    lines: list[str] = []
    if held := _texts(answer, "held"):
        lines.append(
            f"not started, because the process of the flow kept ending: {', '.join(held)}. See the"
            " log for the reason, stop or correct the component that ends it, and start the others"
        )
    for one in components:
        called = one.get("name")
        lines += [f"{called} cannot run: {problem}" for problem in _texts(one, "problems")]
        lines += [f"waits for {wait}" for wait in wait_lines(one)]
        if abandoned := whole(one, "terminatedTasks"):
            lines.append(f"{called}: abandoned threads that still run: {abandoned:,}")
    lines += [
        f"connection {queue} is not in the flow but has FlowFiles: apply a flow that contains it"
        for queue in _texts(answer, "orphanedQueues")
    ]
    lines += [f"at the start: {event.get('message')}" for event in objects(answer, "events")]
    return ["", *lines] if lines else []


def _texts(of: Object, name: str) -> list[str]:
    found = of.get(name)
    return [str(one) for one in found] if isinstance(found, list) else []


def size(count: int) -> str:
    """Format a number of bytes."""
    value, units = float(count), ["TB", "GB", "MB", "KB", "B"]
    unit = units.pop()
    while value >= 1024 and units:
        value, unit = value / 1024, units.pop()
    return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:,.1f} {unit}"
