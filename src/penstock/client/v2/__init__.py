"""NSQ's V2 protocol as a client speaks it: bytes, the handshake, and one connection."""
