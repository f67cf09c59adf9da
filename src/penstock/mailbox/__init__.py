"""Penstock mailbox."""
