"""The HTTP applications of the roles, and the clients that our processes use among themselves."""
