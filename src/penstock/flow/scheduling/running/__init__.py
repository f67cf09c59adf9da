"""Who runs now: places, looks and threads."""
