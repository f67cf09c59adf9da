"""NSQ's V2 protocol on the client's side: bytes, the handshake, and one connection."""
