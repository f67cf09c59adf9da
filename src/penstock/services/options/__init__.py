"""Options of Penstock: their table, how values are read, and where they are given."""
