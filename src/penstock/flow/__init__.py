"""Flows: FlowFiles, their queues that swap to disk, sessions, scheduling and processors."""
