"""Discovery: processes announce themselves, and others watch the nodes of each role."""
