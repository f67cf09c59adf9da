"""Databases of users, for reading."""
