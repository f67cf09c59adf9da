"""The supervisors of a term: those that read streams, those that compact, and their ends."""
