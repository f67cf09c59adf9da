"""Automatic compaction: which time chunks need it, the duty that submits tasks, its supervisors."""
