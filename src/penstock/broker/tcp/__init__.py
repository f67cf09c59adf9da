"""NSQ's TCP protocol: connections, upgrades, authentication, and the listeners."""
