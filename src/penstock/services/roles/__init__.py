"""The processes: each module puts one together out of what other packages offer, and no more."""
