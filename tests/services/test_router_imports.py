"""What a process does not load at its start: the router what others do, nobody pandas."""

from __future__ import annotations

import subprocess
import sys


def loaded(role: str) -> list[str]:
    """Return what the process of a role has loaded when it begins."""
    script = f"import sys, penstock.services.roles.{role}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.split()


def test_the_router_loads_neither_overlord_nor_worker():
    """It may run without them."""
    names = loaded("router")
    indexing = ("overlord", "lockbox", "supervisor", "worker", "task.")
    others = tuple(f"penstock.indexing.{name}" for name in indexing)
    assert [name for name in names if name.startswith(others)] == []
    assert "pandas" not in names


def test_a_peon_does_without_pandas():
    """It takes half a second and 40 MB, and each task is a process."""
    assert "pandas" not in loaded("peon")
