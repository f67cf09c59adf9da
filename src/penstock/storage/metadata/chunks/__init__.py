"""Chunks: the used segments of one interval and version, and their visibility."""
