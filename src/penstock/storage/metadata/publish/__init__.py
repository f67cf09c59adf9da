"""The commits: publishes of three kinds, and the offsets that move with them."""
