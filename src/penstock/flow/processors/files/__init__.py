"""Processors for files of this machine, and of any file system that fsspec supports."""
