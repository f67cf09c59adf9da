"""Files of this machine, and of any file system that fsspec knows."""
