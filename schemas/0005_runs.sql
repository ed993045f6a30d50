-- One row for each run. The higher `version` stays: a run that ended over its beginning alone, an uncut payload
-- over one that some hop cut, then the one that came first. Counts are taken from `crossings` at query time, after duplicates are removed.
CREATE TABLE IF NOT EXISTS runs
(
    run_id         String CODEC(ZSTD(1)),
    parent_span_id String CODEC(ZSTD(1)),
    name           String CODEC(ZSTD(1)),
    span_kind      UInt8,
    service        LowCardinality(String),
    started        DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    duration_ns    UInt64 CODEC(T64, ZSTD(1)),
    finished       Bool,
    ending         LowCardinality(String),
    failed         Bool,
    entry          LowCardinality(String),
    within         String CODEC(ZSTD(1)),
    origin         String CODEC(ZSTD(1)),
    attributes     Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    cut            Bool,
    payload_bytes  UInt64 CODEC(T64, ZSTD(1)),
    payload        String CODEC(ZSTD(1)),
    version        UInt64,
    INDEX run run_id TYPE bloom_filter(0.001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toMonth(started)
ORDER BY run_id
SETTINGS index_granularity = 256, index_granularity_bytes = '64Mi', min_bytes_for_wide_part = '1Gi';

CREATE MATERIALIZED VIEW IF NOT EXISTS runs_view TO runs AS
SELECT
    concat(TraceId, '-', SpanAttributes['agent_replay.run'])               AS run_id,
    if(match(ParentSpanId, '^[0-9a-f]{16}$'), ParentSpanId, '')             AS parent_span_id,
    SpanName                                                               AS name,
    multiIf(SpanKind IN ('Server', 'SPAN_KIND_SERVER'), 2,
            SpanKind IN ('Client', 'SPAN_KIND_CLIENT'), 3, 1)              AS span_kind,
    ServiceName                                                            AS service,
    Timestamp                                                              AS started,
    if(Duration >= 9223372036854775808, 0, Duration)                       AS duration_ns,
    SpanAttributes['agent_replay.frame'] = 'run'                           AS finished,
    SpanAttributes['agent_replay.end']                                     AS ending,
    StatusCode IN ('Error', 'STATUS_CODE_ERROR')                           AS failed,
    SpanAttributes['agent_replay.entry']                                   AS entry,
    SpanAttributes['agent_replay.within']                                  AS within,
    SpanAttributes['agent_replay.origin']                                  AS origin,
    mapFilter((k, v) -> k NOT IN ('agent_replay.frame', 'agent_replay.payload'), SpanAttributes) AS attributes,
    length(SpanAttributes['agent_replay.payload'])
        != toUInt64OrZero(SpanAttributes['agent_replay.payload.length'])   AS cut,
    length(SpanAttributes['agent_replay.payload'])                         AS payload_bytes,
    SpanAttributes['agent_replay.payload']                                 AS payload,
    bitShiftLeft(toUInt64(if(finished, 2, 0) + if(cut, 0, 1)), 60)
        + 1152921504606846975 - toUnixTimestamp64Micro(now64(6))           AS version
FROM otel_traces
WHERE SpanAttributes['agent_replay.frame'] IN ('run', 'run.start')
    AND match(TraceId, '^[0-9a-f]{32}$') AND match(SpanAttributes['agent_replay.run'], '^[0-9a-f]{16}$');
