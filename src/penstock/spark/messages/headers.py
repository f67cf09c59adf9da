"""Headers of records as text columns, one for each header name. Pure.

If a record repeats a header, the last one counts. UTF-8 and ASCII are checked as whole columns. For
other encodings each distinct value is decoded once, because most headers repeat a few values.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.topic.parse import BadMessage

_LIKE_ASCII: Final = frozenset({"UTF-8", "US-ASCII", "ISO-8859-1"})
_MARKS: Final = (b"\xfe\xff", b"\xff\xfe")


def header_values(headers: pa.MapArray, name: str) -> pa.BinaryArray:
    """Return a header of each record; null if the record lacks it."""
    return pc.map_lookup(headers, pa.scalar(name), "last")


def header_texts(
    values: pa.BinaryArray, name: str, encoding: str
) -> tuple[pa.StringArray, tuple[BadMessage, ...]]:
    """Return the values of a header as text, and the bad ones by their index."""
    if encoding in _LIKE_ASCII:
        try:
            texts = values.cast(pa.string())
        except pa.ArrowInvalid:
            pass
        else:
            if encoding == "UTF-8" or pc.all(pc.string_is_ascii(texts)).as_py() is not False:
                return texts, ()
    coded = pc.dictionary_encode(values)
    decoded = [_decoded(value, encoding) for value in coded.dictionary.to_pylist()]
    texts = pa.array(decoded, pa.string()).take(coded.indices)
    wrong = np.flatnonzero(pc.and_(values.is_valid(), texts.is_null()))
    reason = f"header {name!r} is not {encoding}"
    return texts, tuple(BadMessage(index, reason) for index in wrong.tolist())


def header_names(headers: pa.MapArray) -> list[str]:
    """Return the names of all headers, each once."""
    names: list[str] = pc.unique(headers.keys).to_pylist()
    return names


def _decoded(value: bytes, encoding: str) -> str | None:
    if encoding == "UTF-16" and not value.startswith(_MARKS):
        encoding = "UTF-16BE"  # Java's default for text without a byte order mark.
    try:
        return value.decode(encoding)
    except UnicodeDecodeError:
        return None
