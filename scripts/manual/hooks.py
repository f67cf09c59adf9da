"""The events of MkDocs that the manual handles.

MkDocs calls the functions by their names. A warning of the logger below `mkdocs` fails the build,
because `mkdocs.yml` sets `strict`; all pages are checked before it fails.
"""

from __future__ import annotations

import logging
import re
import tomllib
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from manual.navigation import expanded
from manual.page_policy import InlineParts, violations
from manual.pages import mistakes_of_markdown
from manual.pictures import PictureMistake, with_pictures

logger = logging.getLogger("mkdocs.hooks.manual")

_ROOT: Final = Path(__file__).parents[2]
# The first two need the address at which the site is served. The others of the theme are for
# languages other than English, and for debuggers.
_UNUSED: Final = re.compile(r"404\.html|sitemap\.xml|assets/javascripts/lunr/.*|assets/.*\.map")

# Factors of pages in the search, by folder. Readers search for the how-to of a task first; without
# these factors, decisions crowd it out, because they have the same words in shorter texts.
_BOOSTS: Final = {"howto": 2.0, "contributing": 0.2, "decisions": 0.1}

_inline = InlineParts()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version on each page, and list the pages that a pattern stands for."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    config.site_name = f"{config.site_name} {project['version']}"
    config.theme.static_templates -= {"404.html", "sitemap.xml"}
    config.nav = expanded(config.nav or [], Path(config.docs_dir))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Leave out files of the theme that no page uses."""
    del config
    for file in list(files):
        if _UNUSED.fullmatch(file.dest_uri):
            files.remove(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Report text that MkDocs shows in another way than code hosts do; set the search's factor."""
    del config, files
    boost = _BOOSTS.get(page.file.src_uri.partition("/")[0])
    if boost is not None:
        page.meta.setdefault("search", {"boost": boost})
    for mistake in mistakes_of_markdown(markdown):
        logger.warning("%s: %s", page.file.src_uri, mistake)
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the pictures into the page."""
    del files
    folder = (Path(config.docs_dir) / page.file.src_uri).parent
    try:
        return with_pictures(html, folder)
    except PictureMistake as mistake:
        logger.warning("%s: %s", page.file.src_uri, mistake)
        return html


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Move inline scripts and styles into files, and report what a strict policy would block."""
    del config
    to_top = "../" * page.file.dest_uri.count("/")
    moved = _inline.moved(output, to_top)
    for violation in violations(moved):
        logger.warning("%s: %s", page.file.src_uri, violation)
    return moved


def on_post_build(config: MkDocsConfig) -> None:
    """Write the files of the scripts and styles."""
    _inline.write(Path(config.site_dir))
