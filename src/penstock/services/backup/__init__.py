"""Backup and restore of a Penstock."""
