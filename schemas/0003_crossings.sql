-- One row for each crossing of each run. The span id is part of the key, so that a later row of the same
-- position never replaces a recorded one; readers report the conflict. The higher `version` stays: a whole
-- crossing over its input alone, an uncut payload over one that some hop cut; then the longer input (each further
-- attempt of a call is written with those before it), or the whole crossing that came first, so that nobody who
-- knows its ids can put another one in its place.
-- Only `payload` is large, and no query over many runs reads it. Trace ids are random, so every part may hold any
-- run: the filter says which granules do. Parts below a gigabyte keep their columns in one file: to open thirty for
-- the twenty rows of a run costs more than to read them.
CREATE TABLE IF NOT EXISTS crossings
(
    run_id         String CODEC(ZSTD(1)),
    lane           String CODEC(ZSTD(1)),
    key            LowCardinality(String),
    ordinal        UInt32,
    span_id        String CODEC(ZSTD(1)),
    parent_span_id String CODEC(ZSTD(1)),
    kind           LowCardinality(String),
    name           String CODEC(ZSTD(1)),
    span_kind      UInt8,
    started        DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    duration_ns    UInt64 CODEC(T64, ZSTD(1)),
    finished       Bool,
    ending         LowCardinality(String),
    failed         Bool,
    model          LowCardinality(String),
    input_tokens   UInt64 CODEC(T64, ZSTD(1)),
    output_tokens  UInt64 CODEC(T64, ZSTD(1)),
    attributes     Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    cut            Bool,
    payload_bytes  UInt64 CODEC(T64, ZSTD(1)),
    payload        String CODEC(ZSTD(1)),
    version        UInt64,
    INDEX run run_id TYPE bloom_filter(0.001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toMonth(started)
ORDER BY (run_id, lane, key, ordinal, span_id)
SETTINGS index_granularity = 256, index_granularity_bytes = '64Mi', min_bytes_for_wide_part = '1Gi';

CREATE MATERIALIZED VIEW IF NOT EXISTS crossings_view TO crossings AS
SELECT
    concat(TraceId, '-', SpanAttributes['agent_replay.run'])               AS run_id,
    SpanAttributes['agent_replay.lane']                                    AS lane,
    SpanAttributes['agent_replay.key']                                     AS key,
    toUInt32OrZero(SpanAttributes['agent_replay.ordinal'])                 AS ordinal,
    SpanId                                                                 AS span_id,
    if(match(ParentSpanId, '^[0-9a-f]{16}$'), ParentSpanId, '')             AS parent_span_id,
    SpanAttributes['agent_replay.kind']                                    AS kind,
    SpanName                                                               AS name,
    multiIf(SpanKind IN ('Server', 'SPAN_KIND_SERVER'), 2,
            SpanKind IN ('Client', 'SPAN_KIND_CLIENT'), 3, 1)              AS span_kind,
    Timestamp                                                              AS started,
    if(Duration >= 9223372036854775808, 0, Duration)                       AS duration_ns,
    SpanAttributes['agent_replay.frame'] = 'crossing'                      AS finished,
    SpanAttributes['agent_replay.end']                                     AS ending,
    StatusCode IN ('Error', 'STATUS_CODE_ERROR')                           AS failed,
    SpanAttributes['gen_ai.request.model']                                 AS model,
    least(toUInt64OrZero(SpanAttributes['gen_ai.usage.input_tokens']), 1099511627775)   AS input_tokens,
    least(toUInt64OrZero(SpanAttributes['gen_ai.usage.output_tokens']), 1099511627775)  AS output_tokens,
    mapFilter((k, v) -> k NOT IN ('agent_replay.frame', 'agent_replay.payload'), SpanAttributes) AS attributes,
    length(SpanAttributes['agent_replay.payload'])
        != toUInt64OrZero(SpanAttributes['agent_replay.payload.length'])   AS cut,
    length(SpanAttributes['agent_replay.payload'])                         AS payload_bytes,
    SpanAttributes['agent_replay.payload']                                 AS payload,
    bitShiftLeft(toUInt64(if(finished, 2, 0) + if(cut, 0, 1)), 60)
        + if(finished, 1152921504606846975 - toUnixTimestamp64Micro(now64(6)), payload_bytes) AS version
FROM otel_traces
WHERE SpanAttributes['agent_replay.frame'] IN ('crossing', 'crossing.start')
    AND match(TraceId, '^[0-9a-f]{32}$') AND match(SpanAttributes['agent_replay.run'], '^[0-9a-f]{16}$')
    AND match(SpanId, '^[0-9a-f]{16}$');
