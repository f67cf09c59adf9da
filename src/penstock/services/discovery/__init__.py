"""Who is there: processes announce themselves, and others listen for them, role by role."""
