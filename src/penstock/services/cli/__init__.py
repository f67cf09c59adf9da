"""Command line. `main` is the entry point of the command `penstock`."""

from __future__ import annotations

import sys

from penstock.services.cli import exit_codes

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit."""
    try:
        # Imported here, because Ctrl-C may come during the import, too.
        from penstock.services.cli.entry import main as run  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.exit(exit_codes.INTERRUPTED)
    run()
