"""Settings shared by all tests."""

from __future__ import annotations

import functools
import gc
import logging
import os
import re
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

from penstock.core.threads import DEATHS, Deaths
from tests.kits.ports_kit import kept_port

if TYPE_CHECKING:
    from penstock.testing.server import LocalPenstock

# The same examples in each run, so that a failure is one of the change at hand, and comes again.
# `make soak ARGS="properties"` runs the profile `soak`, seed after seed.
settings.register_profile("dev", max_examples=15, deadline=None, derandomize=True)
settings.register_profile("soak", max_examples=400, deadline=None)

# Tests sync files some hundred thousand times. None of them cuts the power of the machine, so
# their files may be in memory, where that costs nothing; where memory is scarce they stay on disk.
IN_MEMORY = Path("/dev/shm")
IN_MEMORY_BYTES_MIN = 8 << 30


def _memory_bytes() -> int:
    """Return how many bytes both the machine and its file system in memory have left."""
    try:
        usable = shutil.disk_usage(IN_MEMORY).free
        left = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return 0
    return min(usable, int(left[1]) * 1024 if left else 0)


# Not in the processes of a test run: they follow the first one.
if "TMPDIR" not in os.environ and _memory_bytes() >= IN_MEMORY_BYTES_MIN:
    os.environ["TMPDIR"] = str(IN_MEMORY)
    tempfile.tempdir = None

# A JVM of a test lives for a minute: what its best compiler wins it takes three times to compile.
# With the first compiler alone Java reserves 48 MB for compiled code, which the Spark of the Spark
# tests fills: a quarter of its time then goes into the search for code to drop.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
# Nearly every query of a test is a new one over few rows. To generate and compile Java for it costs
# Spark more than to interpret it: a fifth of the time of all JVMs. Spark itself interprets where
# its generated code is too long. The demo in test_wheel.py has it compile, as it does for users.
INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
os.environ.setdefault("PENSTOCK_SPARK_JAVA_OPTIONS", f"{JAVA_OPTIONS} {INTERPRETED}")

# A second JVM for queries is tested where it matters; elsewhere its start would only cost time.
os.environ.setdefault("PENSTOCK_QUERY_MEMORY", "none")

# Each process would else have an order of sets of its own, and with it other runs of the simulated
# cluster than `make simulate`: what failed could not be repeated. For the processes of `make test`.
os.environ.setdefault("PYTHONHASHSEED", "0")

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "dev")
settings.load_profile(PROFILE)

# Hypothesis parses all sources, in each process of a test run from nothing, for constants that it
# gives to some examples. With few examples hardly any test gets one.
if PROFILE == "dev":
    assert hasattr(providers, "_get_local_constants")
    providers._get_local_constants = Constants


# What starts systems goes to one process, as several at a time starve each other; what needs Spark
# to another, so that one Spark is started; the rest is dealt by files. The systems that share a
# Spark (`shared_spark`) come after the longest files of the rest: later than those above, and early
# enough that the others have files until the process that has them ends.
LANES = ("system", "spark")
# The first two processes take these lanes, whose tests often wait: the others run meanwhile.
LANE_PROCESSES = ("gw0", "gw1")
NICENESS = 4
LATER = "system, later"
LATER_FILES = frozenset(
    {
        "test_analysts_requests.py",
        "test_analysts_tools.py",
        "test_backup.py",
        "test_case_of_columns.py",
        "test_console.py",
        "test_console_load.py",
        "test_console_tutorial.py",
        "test_database_task.py",
        "test_delta_readers.py",
        "test_engines_page.py",
        "test_manual.py",
        "test_moved_folder.py",
        "test_role_loops.py",
        "test_rolling_restart.py",
        "test_router_limits.py",
        "test_secret_reads.py",
        "test_served_manual.py",
        "test_side_by_side.py",
        "test_stalled_readers.py",
        "test_testing_page.py",
    }
)
# Systems that are one process, and cost the others little: dealt as the rest is.
SMALL_SYSTEMS = frozenset(
    {
        "test_access_on_full_disk.py",
        "test_manual_kit.py",
        "test_testing_server.py",
        "test_tls_broker.py",
    }
)
# A parameter that is the Spark of the lane. Files of Spark tests without one start a Spark of their
# own, or need none: they are dealt as the rest is.
OF_THE_SPARK = re.compile(r"[( ](engine|sessions|spark|spark_server): ")
# Of the rest the folders with the longest files, which come before the systems that share a Spark,
# and long files of others, which come right after them: at the end others would wait for one.
LONG = ("simulation", "system", "tests")
LONG_FILES = frozenset(
    {
        "test_database_rows.py",
        "test_input_bombs.py",
        "test_killed_spark.py",
        "test_large_answers.py",
        "test_parsing.py",
        "test_record_bombs.py",
    }
)

# They parse all sources of Penstock, which one process does once for all of them.
OF_SOURCES = frozenset(
    {
        "test_callbacks.py",
        "test_code_names.py",
        "test_cohesion.py",
        "test_tidy.py",
        "test_ways.py",
    }
)

FOLDER = Path(__file__).parent


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Deals the tests to the processes of `make test`."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _lane(nodeid) or ("sources" if Path(file).name in OF_SOURCES else file)


class Shares:
    """Counts how long each process of `make test` ran tests of each lane, and when it ended."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._ran_s: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._ended_s: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of one phase of a test."""
        process = getattr(report, "worker_id", "")
        self._ran_s[process, _lane(report.nodeid) or "others"] += report.duration

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Note when a process ended."""
        self._ended_s[node.gateway.id] = time.monotonic() - self._begun_s

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show who waited for whom at the end."""
        for process, ended_s in sorted(self._ended_s.items()):
            lanes = {lane: took for (one, lane), took in self._ran_s.items() if one == process}
            shown = ", ".join(f"{lane} {took:.0f} s" for lane, took in lanes.items())
            terminalreporter.write_line(f"{process} ended after {ended_s:.0f} s: {shown}")


# A part of Penstock proves with faults at each call of its ports that no exception leaves it half
# changed: `make test` runs a fixed sample of the cases, `make soak ARGS="faults"` all.
PROOF = re.compile(r"test_\w*faults\.py")
SAMPLE_S_MAX = 60.0


class Proofs:
    """Sums the time of each file with a sample of faults, and reports those that take too long."""

    def __init__(self) -> None:
        self._took_s: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of one phase of a test."""
        file = report.nodeid.partition("::")[0]
        if PROOF.fullmatch(Path(file).name):
            self._took_s[file] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the files, without failing: the machine may have had other work."""
        for file, took_s in sorted(self._took_s.items(), key=lambda one: -one[1]):
            if took_s > SAMPLE_S_MAX:
                terminalreporter.write_line(
                    f"{file} took {took_s:.0f} s: a sample of faults may take {SAMPLE_S_MAX:.0f} s,"
                    " so run fewer cases of it"
                )


# `--durations` lists no phase of a test that takes less.
QUICK_S = 0.005


def _send_fewer_reports(config: pytest.Config) -> None:
    """Have a process of `make test` send no reports of quick set-ups and tear-downs that passed.

    Nothing is shown of them, and they are two of the three reports of most tests.
    """
    plugins = config.pluginmanager.get_plugins()
    process = next((one for one in plugins if type(one).__name__ == "WorkerInteractor"), None)
    if process is None or config.getoption("xmlpath", None):
        return
    send = process.sendevent

    def sendevent(name: str, **more: object) -> None:
        report = more.get("data") if name == "testreport" else None
        if not isinstance(report, dict) or not _is_quick_phase(report):
            send(name, **more)

    process.sendevent = sendevent


def _is_quick_phase(report: Mapping[str, object]) -> bool:
    took_s = report["duration"]
    assert isinstance(took_s, float)
    has_passed = report["outcome"] == "passed" and not report["sections"]
    return has_passed and report["when"] != "call" and took_s < QUICK_S


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep the form in which pytest shows log lines: `caplog.text` would else depend on the order.

    pytest adds its handlers to loggers that do not propagate, and a logger of PySpark gives its
    own form, JSON, to each handler that is added to it.
    """
    plugin = session.config.pluginmanager.get_plugin("logging-plugin")
    assert plugin is not None
    for handler in (plugin.caplog_handler, plugin.report_handler):
        handler.setFormatter = lambda _other: None


def pytest_configure(config: pytest.Config) -> None:
    """Have each process of `make test` begin with another folder when it collects.

    In a new clone each would else compile every test, and all of them the same one at a time.
    """
    given = getattr(config, "workerinput", None)
    if given is None:
        config.pluginmanager.register(Proofs())
    if given is None and getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Shares())
    if given is not None:
        _send_fewer_reports(config)
    if given is not None and given["workerid"] not in LANE_PROCESSES:
        os.nice(NICENESS)
    if given is None or config.args != config.getini("testpaths"):
        return
    tests = sorted(path.relative_to(FOLDER) for path in FOLDER.rglob("test_*.py"))
    of_tests = [str(FOLDER / path.parts[0]) for path in tests]
    places = list(dict.fromkeys(of_tests))
    turn = len(tests) * int(given["workerid"].removeprefix("gw")) // given["workercount"]
    first = places.index(of_tests[turn])
    config.args[:] = places[first:] + places[:first]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return Lanes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the longest lanes begin first, and know by its marker what needs Spark.

    The order is the same in all processes, wherever they began.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "spark_server" in fixtures:
            item.add_marker("spark")
        if "shared_spark" in fixtures and _lane(item.nodeid) != LATER:
            # In another lane it would start another Spark, and perhaps another Penstock.
            raise pytest.UsageError(f"add the file of {item.nodeid} to LATER_FILES")
    order = (*LANES, "long", LATER, "")

    @functools.cache
    def place(path: Path) -> tuple[int, bool, str]:
        lane = _lane_of_file(str(path))
        if not lane and path.parent.name in LONG:
            lane = "long"
        return order.index(lane), path.name not in LONG_FILES, str(path)

    items.sort(key=lambda item: place(item.path))


def _lane(nodeid: str) -> str:
    return _lane_of_file(nodeid.partition("::")[0])


@functools.cache
def _lane_of_file(file: str) -> str:
    path = Path(file)
    lane = path.parent.name if path.parent.name in LANES else ""
    if lane == "spark" and not OF_THE_SPARK.search((FOLDER / lane / path.name).read_text()):
        return ""
    if path.name in LATER_FILES:
        return LATER
    if path.name in SMALL_SYSTEMS:
        return ""
    # The other pages of the console are served in the process of their test.
    return "" if path.name.startswith("test_console_") else lane


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Spark that tests of systems share where Spark is not the part under test.

    A Spark for each would cost its start, and the first queries of a JVM are slow.
    """
    # Here, because most processes of a test run need none of it.
    from tests.kits.spark_server_kit import start_server

    server = start_server(tmp_path_factory.mktemp("shared-spark"))
    yield server.remote
    server.stop(0.2)  # without the time to write a class archive


@pytest.fixture(scope="session")
def flight_address() -> Iterator[str]:
    """Address at which `shared_penstock` serves Flight SQL."""
    with kept_port() as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="session")
def shared_penstock(
    tmp_path_factory: pytest.TempPathFactory, shared_spark: str, flight_address: str
) -> Iterator[LocalPenstock]:
    """A Penstock that may be used by any test, and must work afterwards.

    Each test has topics and datasources of its own. A Penstock for each would cost its start and
    its stop: eight seconds of processor time.
    """
    # Here, because most processes of a test run need none of it.
    from tests.kits.this_host_kit import LISTED
    from tests.storage.reading_database_kit import PASSWORD
    from tests.system.serving_kit import serving

    variables = {
        "PENSTOCK_SPARK_CONNECT": shared_spark,
        "PENSTOCK_FLIGHT": flight_address,
        "PENSTOCK_INPUT_SHOP": PASSWORD,
        "PENSTOCK_REACHABLE_HOSTS": LISTED,
    }
    # A name that a URL, a shell or a list must escape.
    with serving(tmp_path_factory.mktemp("a b#ü% 20%") / "data", variables) as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude imported modules and collected tests from garbage collection: they stay anyway.

    Tests make many objects and few cycles, so that the default threshold of 700 costs them 5 %.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(10_000, 20, 50)


_UMASK = os.umask(0o077)
os.umask(_UMASK)
_LOG_LEVELS = {name: logging.getLogger(name).level for name in ("", "penstock", "penstock.audit")}


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Restore what some commands, routes and fixtures set for their process, which tests share."""
    os.umask(_UMASK)
    if nextitem is None or nextitem.path != item.path:
        # Otherwise the tests of another file would find more lines in the log.
        for name, level in _LOG_LEVELS.items():
            logging.getLogger(name).setLevel(level)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """Escape what no encoding has: a process of `make test` could not send it, and would end.

    Tests with such names and texts have them in their log and in what they compared.
    """
    return _encodable((yield))


def _encodable(one: object) -> object:
    match one:
        case str():
            return one.encode(errors="backslashreplace").decode()
        case dict():
            return {name: _encodable(value) for name, value in one.items()}
        case list() | tuple():
            return type(one)(map(_encodable, one))
    return one


@pytest.fixture(scope="session")
def deaths() -> Deaths:
    """Return the deaths of threads and tasks; a test that asks for them expects some."""
    return DEATHS


@pytest.fixture(autouse=True)
def _no_thread_dies(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test during which a thread or task of Penstock ended unexpectedly."""
    DEATHS.forget()
    DEATHS._process_stops = False  # a role that a test before closed has said so
    yield
    found = DEATHS.counts()
    DEATHS.forget()
    assert not found or "deaths" in request.fixturenames, f"ended unexpectedly: {found}"
