"""Task locks: which tasks may write which intervals of a datasource, and under which version."""
