"""Draws the pictures: `python docs/pictures/draw.py` writes NAME.svg for each NAME.py.

Each module here except the kit has a function `draw`, which returns a `Picture`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
# Last, because some pictures have the names of other modules, such as `mailbox` of Python.
sys.path.append(str(FOLDER))

from drawing import Picture  # noqa: E402 - of this folder

_KIT: Final = frozenset({"charts", "draw", "drawing"})


def pictures() -> dict[str, Picture]:
    """Return all pictures by the names of their modules."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in _KIT)
    return {name: _draw(name) for name in names}


def _draw(name: str) -> Picture:
    spec = importlib.util.spec_from_file_location(f"picture_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn: Picture = module.draw()
    return drawn


def main() -> None:
    """Write the files; refuse pictures with problems."""
    drawn = pictures()
    problems = [f"{name}: {one}" for name, picture in drawn.items() for one in picture.check()]
    if problems:
        sys.exit("\n".join(problems))
    for name, picture in drawn.items():
        (FOLDER / f"{name.replace('_', '-')}.svg").write_text(picture.svg())


if __name__ == "__main__":
    main()
