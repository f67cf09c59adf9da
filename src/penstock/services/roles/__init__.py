"""Processes of the roles: each module builds one from the parts of other packages."""
