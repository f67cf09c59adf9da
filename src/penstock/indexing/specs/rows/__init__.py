"""The parts of ``dataSchema``: time, dimensions, granularity."""
