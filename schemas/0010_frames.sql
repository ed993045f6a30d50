-- All that loading a run reads, in one table: its crossings, its packed readings, its content and the run itself.
-- To ask a table costs a few milliseconds however little is in it, so four tables cost four times as much. One row for
-- each frame, `frame` says of what kind. `span_id` is part of the key, so that a later row of the same position never
-- replaces a recorded one; readers report the conflict. The higher `version` stays: a whole crossing or run over its
-- beginning alone, an uncut payload over one that some hop cut; then the longer input of a crossing (each further
-- attempt of a call is written with those before it), or what came first, so that nobody who knows its ids can put
-- another one in its place. Of content `span_id` is the digest and `payload` the piece; `mark` tells pieces apart, so
-- that one that some hop cut stands beside the whole one, and so does whatever else claims to be it: the reader takes
-- the one that has the digest.
-- Only `payload` is large, and no query over many runs reads it. Trace ids are random, so every part may hold any
-- run: the filter says which granules do. Parts below a gigabyte keep their columns in one file: to open thirty for
-- the twenty rows of a run costs more than to read them.
CREATE TABLE IF NOT EXISTS frames
(
    run_id         String CODEC(ZSTD(1)),
    frame          LowCardinality(String),
    lane           String CODEC(ZSTD(1)),
    key            LowCardinality(String),
    ordinal        UInt32 CODEC(T64, ZSTD(1)),
    span_id        String CODEC(ZSTD(1)),
    mark           UInt64 CODEC(T64, ZSTD(1)),
    parent_span_id String CODEC(ZSTD(1)),
    kind           LowCardinality(String),
    name           String CODEC(ZSTD(1)),
    span_kind      UInt8 CODEC(T64, ZSTD(1)),
    started        DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    duration_ns    UInt64 CODEC(T64, ZSTD(1)),
    finished       Bool,
    ending         LowCardinality(String),
    failed         Bool,
    model          LowCardinality(String),
    input_tokens   UInt64 CODEC(T64, ZSTD(1)),
    output_tokens  UInt64 CODEC(T64, ZSTD(1)),
    notes          UInt32 CODEC(T64, ZSTD(1)),
    flaws          UInt32 CODEC(T64, ZSTD(1)),
    attributes     Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    cut            Bool,
    payload_bytes  UInt64 CODEC(T64, ZSTD(1)),
    payload        String CODEC(ZSTD(1)),
    version        UInt64 CODEC(ZSTD(1)),
    INDEX run run_id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX trace substring(run_id, 1, 32) TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX cut cut TYPE minmax GRANULARITY 16
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toMonth(started)
ORDER BY (run_id, frame, lane, key, ordinal, span_id, mark)
SETTINGS index_granularity = 256, index_granularity_bytes = '64Mi', min_bytes_for_wide_part = '1Gi';

-- A span of content holds many pieces; any other one piece, which is its payload. They are made rows of last: whatever
-- else is read of a span would be copied for each of them.
CREATE MATERIALIZED VIEW IF NOT EXISTS frames_view TO frames AS
SELECT
    run_id, frame, lane, key, ordinal,
    if(frame = 'contents', splitByChar('.', piece.1)[-1], ident)           AS span_id,
    if(frame = 'contents', sipHash64(payload), 0)                          AS mark,
    parent_span_id, kind, name, span_kind, started, duration_ns, finished, ending, failed, model,
    input_tokens, output_tokens, notes, flaws, attributes, cut,
    length(payload)                                                        AS payload_bytes,
    if(startsWith(piece.1, 'agent_replay.content64.'), tryBase64Decode(piece.2), piece.2) AS payload,
    if(frame = 'contents', toUInt64(NOT cut),
       bitShiftLeft(toUInt64(if(finished, 2, 0) + if(cut, 0, 1)), 60)
           + if(frame = 'crossing' AND NOT finished, payload_bytes, first)) AS version
FROM
(
    SELECT
        concat(TraceId, '-', SpanAttributes['agent_replay.run'])           AS run_id,
        splitByChar('.', SpanAttributes['agent_replay.frame'])[1]          AS frame,
        if(frame = 'crossing', SpanAttributes['agent_replay.lane'], '')    AS lane,
        if(frame = 'crossing', SpanAttributes['agent_replay.key'], '')     AS key,
        if(frame = 'crossing', toUInt32OrZero(SpanAttributes['agent_replay.ordinal']), 0) AS ordinal,
        if(frame = 'run', SpanAttributes['agent_replay.run'], SpanId)      AS ident,
        if(match(ParentSpanId, '^[0-9a-f]{16}$'), ParentSpanId, '')         AS parent_span_id,
        SpanAttributes['agent_replay.kind']                                AS kind,
        if(frame IN ('crossing', 'run'), SpanName, '')                     AS name,
        multiIf(SpanKind IN ('Server', 'SPAN_KIND_SERVER'), 2,
                SpanKind IN ('Client', 'SPAN_KIND_CLIENT'), 3, 1)          AS span_kind,
        Timestamp                                                          AS started,
        if(Duration >= 9223372036854775808, 0, Duration)                   AS duration_ns,
        SpanAttributes['agent_replay.frame'] IN ('crossing', 'run')        AS finished,
        SpanAttributes['agent_replay.end']                                 AS ending,
        StatusCode IN ('Error', 'STATUS_CODE_ERROR')                       AS failed,
        SpanAttributes['gen_ai.request.model']                             AS model,
        least(toUInt64OrZero(SpanAttributes['gen_ai.usage.input_tokens']), 1099511627775)  AS input_tokens,
        least(toUInt64OrZero(SpanAttributes['gen_ai.usage.output_tokens']), 1099511627775) AS output_tokens,
        toUInt32OrZero(SpanAttributes['agent_replay.notes'])               AS notes,
        toUInt32OrZero(SpanAttributes['agent_replay.flaws'])               AS flaws,
        mapConcat(map('agent_replay.frame', SpanAttributes['agent_replay.frame']),
                  mapFilter((k, v) -> frame != 'contents' AND k NOT IN ('agent_replay.frame', 'agent_replay.payload'),
                            SpanAttributes))                               AS attributes,
        if(frame = 'contents',
           arrayFilter(p -> match(p.1, '^agent_replay\\.content(64)?\\.'), SpanAttributes::Array(Tuple(String, String))),
           [('agent_replay.payload', SpanAttributes['agent_replay.payload'])]) AS pieces,
        toUInt64OrZero(SpanAttributes['agent_replay.payload.length']) != arraySum(p -> length(p.2), pieces)
            AND NOT (frame = 'contents' AND SpanAttributes['agent_replay.payload.length'] = '') AS cut,
        1152921504606846975 - toUnixTimestamp64Micro(now64(6))             AS first
    FROM otel_traces
    WHERE SpanAttributes['agent_replay.frame']
            IN ('crossing', 'crossing.start', 'run', 'run.start', 'readings', 'contents')
        AND match(TraceId, '^[0-9a-f]{32}$') AND match(SpanAttributes['agent_replay.run'], '^[0-9a-f]{16}$')
)
ARRAY JOIN pieces AS piece
WHERE match(span_id, '^[0-9a-f]*$') AND length(span_id) = if(frame = 'contents', 32, 16);

-- What an earlier schema kept in four tables. What lands while this runs comes twice, and is one row.
INSERT INTO frames (run_id, frame, lane, key, ordinal, span_id, parent_span_id, kind, name, span_kind, started,
    duration_ns, finished, ending, failed, model, input_tokens, output_tokens, attributes, cut, payload_bytes, payload,
    version)
SELECT run_id, 'crossing', lane, key, ordinal, span_id, parent_span_id, kind, name, span_kind, started,
    duration_ns, finished, ending, failed, model, input_tokens, output_tokens,
    mapConcat(attributes, map('agent_replay.frame', if(finished, 'crossing', 'crossing.start'))), cut, payload_bytes, payload,
    version
FROM crossings;

ALTER TABLE contents ADD COLUMN IF NOT EXISTS whole UInt8 DEFAULT 1;

INSERT INTO frames (run_id, frame, span_id, mark, span_kind, started, attributes, cut, payload_bytes, payload, version)
SELECT run_id, 'contents', digest, mark, 1, seen, map('agent_replay.frame', 'contents'), NOT whole, bytes, content, whole
FROM contents;

INSERT INTO frames (run_id, frame, span_id, span_kind, started, notes, flaws, attributes, cut, payload_bytes, payload,
    version)
SELECT run_id, 'readings', span_id, 1, started, notes, flaws,
    mapConcat(attributes, map('agent_replay.frame', 'readings')), cut, payload_bytes, payload, version
FROM readings;

INSERT INTO frames (run_id, frame, span_id, parent_span_id, name, span_kind, started, duration_ns, finished, ending,
    failed, attributes, cut, payload_bytes, payload, version)
SELECT run_id, 'run', substring(run_id, 34), parent_span_id, name, span_kind, started, duration_ns, finished, ending,
    failed, mapConcat(attributes, map('agent_replay.frame', if(finished, 'run', 'run.start'))), cut, payload_bytes, payload,
    version
FROM runs;
