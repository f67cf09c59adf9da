"""The command of a peon: `python -m penstock.services.roles.peon_start …`, started by the worker.

The process ends with the worker from the start: the imports of `peon` take two seconds of processor
time, and a worker that is killed repeatedly would leave more such processes each time.
"""

from __future__ import annotations

import importlib
import sys

from penstock.services.host.process import die_with_parent


def main(arguments: list[str]) -> int:
    """Run a peon, or a fork server of peons, and return the exit code."""
    die_with_parent(int(arguments[arguments.index("--parent") + 1]))
    code: int = importlib.import_module("penstock.services.roles.peon").main(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
