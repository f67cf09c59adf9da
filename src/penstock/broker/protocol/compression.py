"""Compression of connections, re-exported under the protocol's package.

Owns nothing: the server's side and the client's share `penstock.core.compression`.
"""

from penstock.core.compression import Codec, Deflate, Snappy

__all__ = ["Codec", "Deflate", "Snappy"]
