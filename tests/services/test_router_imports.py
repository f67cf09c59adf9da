"""What the router's process does not load: it may run without an overlord or a worker."""

from __future__ import annotations

import subprocess
import sys


def test_the_router_loads_neither_overlord_nor_worker():
    script = (
        "import sys, penstock.services.roles.router; print([n for n in sys.modules if"
        " n.startswith(('penstock.indexing.overlord', 'penstock.indexing.lockbox',"
        " 'penstock.indexing.supervisor', 'penstock.indexing.worker', 'penstock.indexing.task.'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"
