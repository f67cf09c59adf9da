"""The folder of the system tests, whose name a URL, a shell or a list must escape.

And a Penstock for tests that need one, each with topics and datasources of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.server import LocalPenstock

NAME = "a b#ü%20%"


@pytest.fixture(scope="session")
def tmp_path_factory(tmp_path_factory: pytest.TempPathFactory) -> pytest.TempPathFactory:
    """All folders of these tests, and so their data folders, are below one of this name."""
    made = copy.copy(tmp_path_factory)
    made._basetemp = tmp_path_factory.getbasetemp() / NAME
    made._basetemp.mkdir(exist_ok=True)
    return made


@pytest.fixture(scope="session")
def shared_penstock(
    tmp_path_factory: pytest.TempPathFactory, shared_spark: str
) -> Iterator[LocalPenstock]:
    """A Penstock that may be used by any test, and must work afterwards.

    One for each test would cost its start and its stop: eight seconds of processor time.
    """
    # Here, because most processes of a test run need none of it.
    from reading_database_kit import PASSWORD
    from serving_kit import serving

    variables = {"PENSTOCK_SPARK_CONNECT": shared_spark, "PENSTOCK_INPUT_SHOP": PASSWORD}
    with serving(tmp_path_factory.mktemp("shared") / "data", variables) as made:
        yield made
