"""The table of options in the reference page of the docs, from the table in the code.

    python tests/options_page.py

writes it into `docs/configuration.md`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.services.options.table import OptionEntry, option_entries

PAGE: Final = Path(__file__).parents[1] / "docs" / "configuration.md"
_HEAD: Final = "| option | variable | default | meaning |\n|---|---|---|---|\n"


def table() -> str:
    """Return the table."""
    return _HEAD + "".join(map(_row, option_entries()))


def page(text: str) -> str:
    """Return the text of the page with the current table."""
    before, head, rest = text.partition(_HEAD)
    assert head, f"{PAGE} lacks the head of the table: restore it"
    _, end, after = rest.partition("\n\n")
    return before + table().removesuffix("\n") + end + after


def _row(entry: OptionEntry) -> str:
    meaning, _, described = entry.help.partition(" [default: ")
    default = described.removesuffix("]") or (f"`{entry.default}`" if entry.default else "none")
    name = f"`{entry.key}` (not on the command line)" if entry.is_secret else f"`{entry.flag}`"
    return f"| {name} | `{entry.variable}` | {default} | {meaning} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
