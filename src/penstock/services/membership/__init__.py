"""Who is there and who leads: announcements and leases, and the election of a leader."""
