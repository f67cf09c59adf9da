"""HTTP applications of the roles, and the HTTP clients between Penstock's processes."""
