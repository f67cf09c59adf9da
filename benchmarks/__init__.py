"""Benchmarks: ours against a peer and a limit, measured in the same run."""

from __future__ import annotations

import sys
from pathlib import Path

# Kits of the tests that benchmarks share, such as lanes that a caller steps.
sys.path.append(str(Path(__file__).parent.parent / "tests" / "harness"))
