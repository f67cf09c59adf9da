"""Fixtures for pytest that run Penstock servers; the only module of Penstock that imports pytest.

Activate them in `conftest.py` with `pytest_plugins = ["penstock.testing.fixtures"]`. One server of
each kind serves the whole test run, or each process of pytest-xdist. When a test that uses one
fails, its report has the last lines of the server's logs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Final

import pytest

from penstock.testing.server import LocalBroker, LocalPenstock

# The running servers by the names of their fixtures.
_SERVERS: Final = pytest.StashKey[dict[str, LocalBroker]]()


@pytest.fixture(scope="session")
def penstock_variables() -> Mapping[str, str]:
    """Options of the servers as environment variables; override this fixture to set some."""
    return {}


@pytest.fixture(scope="session")
def penstock_broker_process(
    penstock_variables: Mapping[str, str], pytestconfig: pytest.Config
) -> Iterator[LocalBroker]:
    """Return a broker that runs until the end of the test run, and keeps its topics."""
    with LocalBroker(variables=penstock_variables) as broker:
        pytestconfig.stash.setdefault(_SERVERS, {})["penstock_broker_process"] = broker
        yield broker


@pytest.fixture
def penstock_broker(penstock_broker_process: LocalBroker) -> LocalBroker:
    """Return the broker of the test run without topics; it is started again if it does not run."""
    penstock_broker_process.start()
    penstock_broker_process.delete_topics()
    return penstock_broker_process


@pytest.fixture(scope="session")
def penstock_server(
    penstock_variables: Mapping[str, str], pytestconfig: pytest.Config
) -> Iterator[LocalPenstock]:
    """Return a whole Penstock that runs until the end of the test run, and keeps its data."""
    with LocalPenstock(variables=penstock_variables) as server:
        pytestconfig.stash.setdefault(_SERVERS, {})["penstock_server"] = server
        yield server


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have the report of a failed test show what the servers log from now on."""
    for server in item.config.stash.get(_SERVERS, {}).values():
        server.forget_logs()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the servers that a failed test used to its report."""
    report = yield
    if report.failed:
        # With the fixtures that other fixtures of the test use.
        used = getattr(item, "fixturenames", ())
        for name, server in item.config.stash.get(_SERVERS, {}).items():
            if name in used:
                report.sections.append((f"Logs of {name}", server.logs()))
    return report
