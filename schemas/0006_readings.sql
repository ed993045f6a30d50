-- Packed readings of clock and entropy, completions and notes, as they were written between two other frames.
CREATE TABLE IF NOT EXISTS readings
(
    run_id        String CODEC(ZSTD(1)),
    span_id       String CODEC(ZSTD(1)),
    started       DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    notes         UInt32 CODEC(T64, ZSTD(1)),
    flaws         UInt32 CODEC(T64, ZSTD(1)),
    attributes    Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    cut           Bool,
    payload_bytes UInt64 CODEC(T64, ZSTD(1)),
    payload       String CODEC(ZSTD(1)),
    version       UInt64,
    INDEX run run_id TYPE bloom_filter(0.001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toMonth(started)
ORDER BY (run_id, span_id)
SETTINGS index_granularity = 256, index_granularity_bytes = '64Mi', min_bytes_for_wide_part = '1Gi';

CREATE MATERIALIZED VIEW IF NOT EXISTS readings_view TO readings AS
SELECT
    concat(TraceId, '-', SpanAttributes['agent_replay.run'])               AS run_id,
    SpanId                                                                 AS span_id,
    Timestamp                                                              AS started,
    toUInt32OrZero(SpanAttributes['agent_replay.notes'])                   AS notes,
    toUInt32OrZero(SpanAttributes['agent_replay.flaws'])                   AS flaws,
    mapFilter((k, v) -> k NOT IN ('agent_replay.frame', 'agent_replay.payload'), SpanAttributes) AS attributes,
    length(SpanAttributes['agent_replay.payload'])
        != toUInt64OrZero(SpanAttributes['agent_replay.payload.length'])   AS cut,
    length(SpanAttributes['agent_replay.payload'])                         AS payload_bytes,
    SpanAttributes['agent_replay.payload']                                 AS payload,
    bitShiftLeft(toUInt64(if(cut, 0, 1)), 60)
        + 1152921504606846975 - toUnixTimestamp64Micro(now64(6))           AS version
FROM otel_traces
WHERE SpanAttributes['agent_replay.frame'] = 'readings'
    AND match(TraceId, '^[0-9a-f]{32}$') AND match(SpanAttributes['agent_replay.run'], '^[0-9a-f]{16}$')
    AND match(SpanId, '^[0-9a-f]{16}$');
