"""The locks of batch tasks: their acquisition, and the segments and chunks that they cover."""
