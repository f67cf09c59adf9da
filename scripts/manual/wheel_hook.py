"""Puts the manual into the wheel: a build hook of Hatchling, which `pyproject.toml` names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SCRIPTS = str(Path(__file__).parents[1])


class ManualHook(BuildHookInterface[Any]):
    """Builds the manual, and lists its files for the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files of the manual; an editable installation uses those of the checkout."""
        if version == "editable":
            return
        sys.path.insert(0, _SCRIPTS)
        from manual.build import NoMkDocs, build_site, site_files  # noqa: PLC0415 - needs the path

        try:
            site = build_site()
        except NoMkDocs as error:
            self.app.display_warning(f"the wheel has no manual: {error}; install mkdocs-material")
            return
        build_data["force_include"].update(
            {str(file): f"penstock/services/site/{file.relative_to(site)}" for file in site_files()}
        )
