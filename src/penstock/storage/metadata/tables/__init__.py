"""Independent tables: each has a small store whose methods are one transaction each."""
