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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal the tests to the processes of `make test`: whole files, and long ones first.

    What needs Spark goes to one process, so that one Spark is started.
    """
    order = {"system": 0, "spark": 1}
    items.sort(key=lambda item: order.get(_folder(item), 2))
    for item in items:
        group = "spark" if _folder(item) == "spark" else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


def _folder(item: pytest.Item) -> str:
    return item.path.parent.name
