"""Build the wheel into a folder, with its bill of materials beside it: `make wheel`."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from release.bill_of_materials import FILE_NAME, ROOT


def main(folder: Path) -> None:
    """Build the wheel, and copy the bill of materials out of it.

    Args:
        folder: The folder of the wheel; other files stay in it.

    Raises:
        SystemExit: The wheel could not be built; the build has written the reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as made:
        command = (sys.executable, "-m", "uv", "build", "-q", "--wheel", "--no-build-isolation")
        options = ("--python", sys.executable, "--out-dir", made, str(ROOT))
        if subprocess.run((*command, *options), check=False).returncode != 0:
            sys.exit(1)
        (wheel,) = Path(made).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (inside,) = (one for one in archive.namelist() if one.endswith(f"/sboms/{FILE_NAME}"))
            beside = folder / f"{inside.partition('.dist-info/')[0]}.cdx.json"
            beside.write_bytes(archive.read(inside))
        shutil.copyfile(wheel, folder / wheel.name)
    print(folder / wheel.name, beside, sep="\n")  # noqa: T201 - the answer of the command


main(Path(sys.argv[1]))
