"""Memory of a broker, and the one budget for all of it."""
