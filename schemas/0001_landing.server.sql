-- Where spans land. The columns are those that the OpenTelemetry Collector's ClickHouse exporter inserts
-- (run it with `create_schema: false`), and when they arrived. Rows are kept for three days, to look at what did;
-- no aggregate and no reading command uses this table, because delivery is at least once and duplicates stay in it.
-- Days are those of arrival: what was recorded long ago is not dropped at once, and no batch, however wide its
-- times are spread, has more partitions than an insert may have.
-- A batch that comes again is taken again: where a view failed the first time, servers that leave out what this table
-- has seen before would not show it to the views a second time.
CREATE TABLE IF NOT EXISTS otel_traces
(
    Timestamp          DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    TraceId            String CODEC(ZSTD(1)),
    SpanId             String CODEC(ZSTD(1)),
    ParentSpanId       String CODEC(ZSTD(1)),
    TraceState         String CODEC(ZSTD(1)),
    SpanName           LowCardinality(String) CODEC(ZSTD(1)),
    SpanKind           LowCardinality(String) CODEC(ZSTD(1)),
    ServiceName        LowCardinality(String) CODEC(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeName          String CODEC(ZSTD(1)),
    ScopeVersion       String CODEC(ZSTD(1)),
    SpanAttributes     Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    Duration           UInt64 CODEC(T64, ZSTD(1)),
    StatusCode         LowCardinality(String) CODEC(ZSTD(1)),
    StatusMessage      String CODEC(ZSTD(1)),
    Events Nested
    (
        Timestamp  DateTime64(9),
        Name       LowCardinality(String),
        Attributes Map(LowCardinality(String), String)
    ) CODEC(ZSTD(1)),
    Links Nested
    (
        TraceId    String,
        SpanId     String,
        TraceState String,
        Attributes Map(LowCardinality(String), String)
    ) CODEC(ZSTD(1)),
    Landed             DateTime DEFAULT now() CODEC(Delta(4), ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(Landed)
ORDER BY (ServiceName, SpanName, toDateTime(Timestamp), Timestamp)
TTL Landed + INTERVAL 3 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 0, replicated_deduplication_window = 0;
