"""What a stream's messages are written in beside JSON, and which columns they have."""
