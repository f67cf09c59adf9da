"""Content: bytes in shared append-only files, each deleted with its last reference."""
