"""The folder of the system tests, whose name a URL, a shell or a list must escape."""

from __future__ import annotations

import copy

import pytest

NAME = "a b#ü% 20%"


@pytest.fixture(scope="session")
def tmp_path_factory(tmp_path_factory: pytest.TempPathFactory) -> pytest.TempPathFactory:
    """All folders of these tests, and so their data folders, are below one of this name."""
    made = copy.copy(tmp_path_factory)
    made._basetemp = tmp_path_factory.getbasetemp() / NAME
    made._basetemp.mkdir(exist_ok=True)
    return made
