"""Variables that specs name reach the processes that run tasks; options do not."""

from __future__ import annotations

from penstock.indexing.spec.inputs import VARIABLE_PREFIX
from penstock.services.host.plan import child_environment


def test_children_have_the_secrets_of_specs_and_no_options():
    name = f"{VARIABLE_PREFIX}KAFKA"
    given = {name: "hush", "PENSTOCK_DATA_FOLDER": "x", "PATH": "/bin"}
    found = child_environment(given)
    assert (found[name], found["PATH"]) == ("hush", "/bin")
    assert "PENSTOCK_DATA_FOLDER" not in found
