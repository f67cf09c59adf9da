"""Content: bytes in append-only files that many share, and that go with their last reference."""
