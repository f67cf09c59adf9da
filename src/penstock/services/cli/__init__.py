"""The command line. `main` is the entry point of the command `penstock`."""

from penstock.services.cli.entry import main

__all__ = ["main"]
