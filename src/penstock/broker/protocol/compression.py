"""The compressed forms of a connection, by the name that the protocol's users know.

Owns nothing: the server's side and the client's share `penstock.core.compression`.
"""

from penstock.core.compression import Codec, Deflate, Snappy

__all__ = ["Codec", "Deflate", "Snappy"]
