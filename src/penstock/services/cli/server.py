"""Commands that run or check a server: `up`, `server`, `status`, `doctor`, `demo`, `init`."""

from __future__ import annotations

import enum
import importlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest, NotReachable, PenstockError, counted
from penstock.services.cli import exit_codes
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import (
    echo,
    echo_lines,
    first_line,
    print_json,
    print_rows,
    wait_lines,
    warn,
)
from penstock.services.cli.server_options import Config, DataDir, takes_options
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.process import end_on_thread_death, leave
from penstock.services.host.tls_settings import use_trust
from penstock.services.json_values import objects
from penstock.services.options.resolution import CONFIG_FILE, CONFIG_VARIABLE
from penstock.services.options.table import PenstockOptions

# Of an outage in which many tasks wait.
_WAITS_SHOWN_MAX: Final = 20

internal_app = typer.Typer(help="Commands for Penstock's own processes.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class ServerRole(enum.StrEnum):
    """Roles that can run alone."""

    BROKER = "broker"
    OVERLORD = "overlord"
    FLOW = "flow"
    WORKER = "worker"
    ROUTER = "router"


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("up")(up)
    app.command("server")(server)
    app.command("status")(status)
    app.command("doctor")(doctor)
    app.command("demo")(demo)
    app.command("init")(init)
    app.add_typer(internal_app, name="internal", hidden=True)


def _resolve(config: Path | None, given: Mapping[str, str | None]) -> PenstockOptions:
    CLI.config_file = config or CLI.config_file
    if named := CLI.config_file or os.environ.get(CONFIG_VARIABLE):
        # For this process and its children, because flows must not change the file.
        os.environ[CONFIG_VARIABLE] = str(Path(named).absolute())
    return CLI.options(**{name: value for name, value in given.items() if value is not None})


def _refuse_addresses(command: str) -> None:
    """Refuse options that address a running server in commands that start one."""
    for option, value, instead in (
        ("--url", CLI.url, "--http"),
        ("--broker-url", CLI.broker_url, "--broker-http"),
    ):
        if value is not None:
            raise InvalidRequest(
                f"{option} {value} names a running server, but {command} starts a new one: omit"
                f" the option, or set the address of the new server with {instead} HOST:PORT"
            )


# Options of `penstock up` only, because only it starts Spark.
OF_LOCAL_SPARK = (
    "spark_master",
    "spark_secret_file",
    "spark_memory",
    "spark_java_options",
    "query_memory",
)


@takes_options()
def up(given: Mapping[str, str | None], config: Config = None) -> None:
    """Run a whole Penstock on this host until Ctrl-C."""
    # Imported here, because no other command needs the launcher.
    from penstock.services.host.up import up as run_up  # noqa: PLC0415

    _refuse_addresses("penstock up")
    options = _resolve(config, given)
    _warn_of_unread_file(options)
    run_up(options, os.environ, SystemClock(), echo_lines, shows_link=sys.stdout.isatty())


def _warn_of_unread_file(options: PenstockOptions) -> None:
    """Warn if this folder has an options file that is not read, because another one is."""
    here = Path(CONFIG_FILE).absolute()
    named = CLI.config_file or os.environ.get(CONFIG_VARIABLE)
    read = Path(named or options.data_dir / CONFIG_FILE)
    if here.is_file() and here.resolve() != read.resolve():
        warn(f"penstock: {here} is not read; options are in {read.absolute()}")


@takes_options(but=OF_LOCAL_SPARK)
def server(
    given: Mapping[str, str | None],
    role: Annotated[ServerRole, typer.Argument(help="The role to run.")],
    config: Config = None,
) -> None:
    """Run one role on its own.

    All roles of one installation must use the same --metadata-url and --deep-storage.
    """
    _refuse_addresses("penstock server")
    options = _resolve(config, given)
    # Imported here, because a role's imports are large.
    from penstock.core.garbage_collection import freeze_new_objects  # noqa: PLC0415

    with freeze_new_objects():
        from penstock.services.roles.runtime import run_alone  # noqa: PLC0415

        module = importlib.import_module(f"penstock.services.roles.{role.value}")
    clock = SystemClock()
    end_on_thread_death()
    is_port_given = given.get("http") is not None
    leave(run_alone(role.value, options, clock, module.compose, is_port_given=is_port_given), clock)


@internal_app.command("prepare-spark")
def prepare_spark_command() -> None:
    """Create Spark's class archive, which halves the start time; `make setup` runs this."""
    # Imported here, because no other command needs them.
    from penstock.services.host.host_plan import spark_cache_folder  # noqa: PLC0415
    from penstock.spark.connect.spark_server import prepare_spark  # noqa: PLC0415

    prepare_spark(spark_cache_folder(os.environ), os.environ, SystemClock())


def status(as_json: Json = False) -> None:
    """Show the processes of a running server, whether each is ready, and why it waits.

    For a server with an authority of its own, name its certificate: --tls-ca FILE.
    """
    try:
        api = CLI.api()
    except NotReachable:
        # The server may still be starting: the launcher records what it waits for.
        starting = DataFolder(CLI.options().data_dir).launcher_record()
        if not starting:
            raise
        _show_start(starting, as_json=as_json)
        return
    answer = api.get("/status")
    if as_json or not isinstance(answer, dict):
        print_json(answer)
        return
    echo(f"Penstock {answer.get('version')} at {CLI.api_url()}, broker {answer.get('broker_http')}")
    rows = [
        {name: value for name, value in one.items() if name != "reasons"}
        for one in objects(answer, "services")
    ]
    print_rows(rows, as_json=False, empty="no service has announced itself")
    reasons = answer.get("reasons")
    for reason in reasons if isinstance(reasons, list) else ():
        echo(f"not ready: {first_line(reason)}")
    lines = wait_lines(answer)
    for line in lines[:_WAITS_SHOWN_MAX]:
        echo(f"waits for {line}")
    if len(lines) > _WAITS_SHOWN_MAX:
        more = counted(len(lines) - _WAITS_SHOWN_MAX, "more wait")
        echo(f"and {more}: see penstock status --json")


def _show_start(children: Mapping[str, Mapping[str, object]], *, as_json: bool) -> None:
    """Show the child processes of a server that is starting."""
    if as_json:
        print_json({"ready": False, "children": children})
        return
    echo("Penstock is starting")
    rows = [
        # As text, because numbers get thousands separators.
        {"process": name, "pid": str(one.get("pid", "")), "ready": one.get("ready")}
        for name, one in children.items()
    ]
    print_rows(rows, as_json=False, empty="no process has started")
    for name, one in children.items():
        if one.get("waits"):
            echo(f"{name} {one['waits']}")


def doctor(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Check this machine, and print a remedy for each problem."""
    # Imported here, because no other command needs it.
    from penstock.services.doctor import examine  # noqa: PLC0415

    options = _resolve(None, {"data_dir": data_dir})
    use_trust(options)
    shown = []
    # The last check starts Spark, which takes up to a minute: the others are printed before it.
    for finding in examine(options, os.environ, SystemClock(), CLI.token_for):
        shown.append(finding)
        if not as_json:
            echo(f"{finding.verdict.value:<5} {finding.subject:<13} {finding.text}")
            if finding.remedy:
                echo(f"{'':<19} → {finding.remedy}")
    if as_json:
        print_json([finding.to_json() for finding in shown])
    if not all(finding.passes for finding in shown):
        raise typer.Exit(exit_codes.FAILED)


def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write to; created if it is missing.")],
) -> None:
    """Write example specs and flows, and files for operators, into a folder."""
    # Imported here, because no other command needs it.
    from penstock.services.examples import EXAMPLES, write_examples  # noqa: PLC0415 - slow to import, not for every command

    written = write_examples(folder)
    for name, about in EXAMPLES.items():
        echo(f"{'wrote' if name in written else 'kept':<5} {folder / name}: {about}")


def demo(
    chaos: Annotated[bool, typer.Option("--chaos", help="Kill processes during the demo.")] = False,
    kills: Annotated[
        int, typer.Option("--kills", min=1, help="Number of kills, with --chaos.")
    ] = 10,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed for the choice of processes to kill.")
    ] = None,
    folder: Annotated[
        Path,
        typer.Option(
            "--folder", help="Folder for the demo's data; data of an earlier demo is deleted."
        ),
    ] = Path("demo-data"),
    files: Annotated[
        Path | None,
        typer.Option("--files", help="Only write the flights into this folder, as CSV files."),
    ] = None,
) -> None:
    """Ingest a year of flights as events, and query them in SQL."""
    # Imported here, because no other command needs it.
    from penstock.services.demo import DemoOptions, run_demo, write_files  # noqa: PLC0415

    if files is not None:
        write_files(files)
        echo(f"a CSV file for each month, and airlines.csv, are in {files}")
        return
    # `timeout` and CI send SIGTERM; the demo's server has its own session and would otherwise keep
    # running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ok = run_demo(DemoOptions(folder=folder, kills=kills if chaos else 0, seed=seed))
    if not ok:
        raise PenstockError("the query results differ from the expected ones: see the lines above")
