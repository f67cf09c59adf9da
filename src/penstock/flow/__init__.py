"""Flows: FlowFiles, queues that swap to disk, sessions, scheduling and processors."""
