"""`agent-replay serve`: OTLP in, the embedded engine inside, the ClickHouse HTTP interface out."""
