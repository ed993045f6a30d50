-- Every span, ours and others', without payload: what dashboards and cost views read.
-- A span may arrive several times (a retry), and in several forms (an input written before the call, the
-- whole crossing after it, the live span by another exporter): the row with the highest `form` stays.
-- Here and below, a partition is a month of any year: few enough to look a run up in, and one batch never has
-- more partitions than an insert may have, whatever times a client sends.
CREATE TABLE IF NOT EXISTS spans
(
    trace_id       String CODEC(ZSTD(1)),
    span_id        String CODEC(ZSTD(1)),
    parent_span_id String CODEC(ZSTD(1)),
    run_id         String CODEC(ZSTD(1)),
    name           LowCardinality(String),
    span_kind      LowCardinality(String),
    service        LowCardinality(String),
    scope          LowCardinality(String),
    started        DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    duration_ns    UInt64 CODEC(T64, ZSTD(1)),
    status         LowCardinality(String),
    status_message String CODEC(ZSTD(1)),
    attributes     Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    linked         Array(String) CODEC(ZSTD(1)),
    form           UInt8
)
ENGINE = ReplacingMergeTree(form)
PARTITION BY toMonth(started)
ORDER BY (trace_id, span_id);

-- A value above 4 KiB is content, whoever wrote it: its beginning is kept. A span that has not ended has an end
-- of 0, which makes the exporter's unsigned duration wrap around.
CREATE MATERIALIZED VIEW IF NOT EXISTS spans_view TO spans AS
SELECT
    TraceId                                                                AS trace_id,
    SpanId                                                                 AS span_id,
    ParentSpanId                                                           AS parent_span_id,
    if(match(TraceId, '^[0-9a-f]{32}$') AND match(SpanAttributes['agent_replay.run'], '^[0-9a-f]{16}$'),
       concat(TraceId, '-', SpanAttributes['agent_replay.run']), '')       AS run_id,
    SpanName                                                               AS name,
    replaceOne(SpanKind, 'SPAN_KIND_', '')                                 AS span_kind,
    ServiceName                                                            AS service,
    ScopeName                                                              AS scope,
    Timestamp                                                              AS started,
    if(Duration >= 9223372036854775808, 0, Duration)                       AS duration_ns,
    multiIf(StatusCode IN ('Error', 'STATUS_CODE_ERROR'), 'Error',
            StatusCode IN ('Ok', 'STATUS_CODE_OK'), 'Ok', 'Unset')         AS status,
    StatusMessage                                                          AS status_message,
    mapApply((k, v) -> (k, if(length(v) > 4096, concat(leftUTF8(v, 1000), '…'), v)),
             mapFilter((k, v) -> k != 'agent_replay.payload', SpanAttributes)) AS attributes,
    arrayMap((t, s) -> concat(t, '-', s), `Links.TraceId`, `Links.SpanId`) AS linked,
    multiIf(SpanAttributes['agent_replay.frame'] IN ('crossing', 'run'), 2,
            SpanAttributes['agent_replay.frame'] = '', 1, 0)               AS form
FROM otel_traces
WHERE SpanAttributes['agent_replay.frame'] NOT IN ('readings', 'contents');
