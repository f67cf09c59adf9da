"""Puts the manual and the bill of materials into the wheel: a build hook of Hatchling.

The hook also makes builds reproducible: the entries of the wheel get the time of the commit. Two
builds of a commit with the locked tools and the same Python have the same bytes, in any folder, at
any time, and under any user, language and umask.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_ROOT: Final = Path(__file__).parents[2]
_EPOCH: Final = "SOURCE_DATE_EPOCH"  # https://reproducible-builds.org/specs/source-date-epoch/


class WheelHook(BuildHookInterface[Any]):
    """Builds the manual and the bill of materials, and lists their files for the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files; an editable installation uses those of the checkout."""
        if version == "editable":
            return
        sys.path.insert(0, str(_ROOT / "scripts"))
        from manual.build import NoMkDocs, build_site, site_files  # noqa: PLC0415 - needs the path
        from release.bill_of_materials import FILE_NAME, bill_of_materials  # noqa: PLC0415

        try:
            site = build_site()
        except NoMkDocs as error:
            self.app.display_warning(f"the wheel has no manual: {error}; install mkdocs-material")
            files = []
        else:
            files = site_files()
            build_data["force_include"].update(
                {str(file): f"penstock/services/site/{file.relative_to(site)}" for file in files}
            )
        self._use_time_of_commit()
        # Hatchling takes the name of the file, so that the folder makes it unique.
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-release-")
        bill = Path(self._folder.name) / FILE_NAME
        text = bill_of_materials(int(os.environ[_EPOCH]), with_manual=bool(files))
        bill.write_text(text, "utf-8")
        build_data["sbom_files"].append(str(bill))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete what the wheel now contains."""
        del build_data, artifact_path
        if version != "editable":
            self._folder.cleanup()

    def _use_time_of_commit(self) -> None:
        """Set the time that Hatchling gives to the entries, unless the caller has set it."""
        if _EPOCH in os.environ:
            return
        command = ("git", "-C", str(_ROOT), "log", "-1", "--format=%ct")
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            os.environ[_EPOCH] = str(int(done.stdout))
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            os.environ[_EPOCH] = "1580601600"  # 2 February 2020, as without this hook
            self.app.display_warning(
                f"git does not tell the time of the commit ({error}): the entries of the wheel are "
                f"dated 2020-02-02; set {_EPOCH} for the bytes of the release"
            )
