"""NiFi's own swap files: read in every format there was, and written in the current one."""
