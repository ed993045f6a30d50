"""Where recordings rest: the spool, read here, and ClickHouse, embedded or as a server."""
