"""Builds the manual: the pages of `docs` as a site, with MkDocs and its theme Material.

`mkdocs.yml` configures the site, `hooks` adds what MkDocs lacks, and `build` writes the site into
the package. This package stands outside of `src`, because only a checkout builds the manual, and
outside of `docs`, because MkDocs copies the files of that folder into the site. It does not import
Penstock, because the wheel is built before Penstock's dependencies are installed.
"""
