"""The processes: each module puts one together out of what the other packages offer, and no more."""
