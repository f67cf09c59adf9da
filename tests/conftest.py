"""Settings shared by all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile(
    "ci",
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("nightly", max_examples=20_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.hookimpl(tryfirst=True)  # before the marks are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal the tests to the processes of `make test`: whole files, the longest lanes first.

    What starts systems goes to one process, as two at a time would starve each other; what needs
    Spark to another, so that one Spark is started.
    """
    lanes = {"system": 0, "spark": 1}
    items.sort(key=lambda item: lanes.get(_folder(item), 2))
    for item in items:
        folder = _folder(item)
        item.add_marker(pytest.mark.xdist_group(folder if folder in lanes else str(item.path)))


def _folder(item: pytest.Item) -> str:
    return item.path.parent.name
