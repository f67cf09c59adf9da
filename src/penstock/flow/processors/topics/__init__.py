"""Topics: taking messages from them, and publishing to them."""
