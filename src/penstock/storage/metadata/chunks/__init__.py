"""Chunks: the used segments of one interval and version, and which of them are seen."""
