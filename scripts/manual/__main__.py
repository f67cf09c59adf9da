"""Build the manual into the package: `make docs`."""

import sys

from manual.build import NoMkDocs, SiteFailed, build_site

try:
    print(build_site() / "index.html")  # noqa: T201 - the answer of the command
except (NoMkDocs, SiteFailed) as error:
    sys.exit(str(error))
