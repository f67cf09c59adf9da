"""What the router's process does not load: it may run without an overlord or a worker."""

from __future__ import annotations

import subprocess
import sys


def test_the_router_loads_neither_overlord_nor_worker():
    answer = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, penstock.services.roles.router;"
            "print([n for n in sys.modules if n.startswith(tuple("
            " 'penstock.indexing.' + p for p in"
            " ('overlord', 'lockbox', 'supervisor', 'worker', 'task.')))])",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert answer.stdout.strip() == "[]"
