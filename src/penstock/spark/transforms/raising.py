"""Errors that the expressions of a spec raise themselves: whose expression it was.

Owns the one question which transform or filter an error of Spark may come from; Spark's own message
has the text that the expression gives and no name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.spark.connect.session import SparkRefusal

if TYPE_CHECKING:
    from penstock.indexing.specs import DataSchema

_RAISED: Final = "[USER_RAISED_EXCEPTION]"
_RAISING: Final = re.compile(r"\b(?:raise_error|assert_true)\s*\(", re.IGNORECASE)


@contextlib.contextmanager
def naming_transforms(schema: DataSchema) -> Iterator[None]:
    """Name the transforms that may have raised an error of the block.

    Raises:
        SparkRefusal: The block's, with the names.
    """
    try:
        yield
    except SparkRefusal as error:
        names = [t.name for t in schema.transforms if _RAISING.search(t.expression)]
        if _RAISED not in str(error) or not names:
            raise
        which = f"transform {names[0]!r}" if len(names) == 1 else f"one of the transforms {names}"
        raise SparkRefusal(
            f"{which} fails on a row, as its expression says: {error}. Make it null instead, or"
            " leave such rows out with the filter"
        ) from error
