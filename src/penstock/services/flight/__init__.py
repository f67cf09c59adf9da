"""Arrow Flight SQL, which drivers of ADBC and JDBC speak."""
