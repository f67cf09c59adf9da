"""Other notations of a spec's JSON."""
