"""The supervisors of a term: streaming ones, compaction ones, and their termination."""
