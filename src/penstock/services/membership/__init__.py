"""Membership of processes: announcements and leases, discovery, and the election of a leader."""
