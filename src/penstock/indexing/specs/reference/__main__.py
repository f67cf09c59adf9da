"""Prints docs/spec-reference.md: ``python -m penstock.indexing.specs.reference``."""

import sys

from penstock.indexing.specs.reference.page import reference_page

sys.stdout.write(reference_page())
