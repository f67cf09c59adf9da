"""Task locks: who may write which time of a datasource, and under which version."""
