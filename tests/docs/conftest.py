"""Builds the manual for the tests beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from manual.build import NoMkDocs, build_site


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the manual; it is built once for all processes of a test run."""
    try:
        return build_site()
    except NoMkDocs as error:
        pytest.skip(f"{error}: run make setup")
