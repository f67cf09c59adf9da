"""Secrets of an installation: sealed on this host, or where its operator keeps them."""
