"""Tools for tests: processors in memory, a virtual clock, failing disks, and real servers."""
