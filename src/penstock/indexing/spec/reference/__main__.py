"""Prints docs/spec-reference.md: ``python -m penstock.indexing.spec.reference``."""

import sys

from penstock.indexing.spec.reference.page import reference_page

sys.stdout.write(reference_page())
