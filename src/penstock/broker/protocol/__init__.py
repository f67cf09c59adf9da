"""NSQ's V2 protocol as pure functions: bytes in, commands out, frames out."""
