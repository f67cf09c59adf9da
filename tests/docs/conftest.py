"""Makes `markdown_kit` importable for the tests beside it, and builds the manual for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from manual.build import NoMkDocs, build_site

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the manual; it is built once for all processes of a test run."""
    try:
        return build_site()
    except NoMkDocs as error:
        pytest.skip(f"{error}: run make setup")
