-- Content that a run has recorded once and refers to by digest; what no run refers to is not kept, and what two runs
-- hold is kept for each. A piece that some hop cut stands beside the whole one, and so does whatever else claims to
-- be it: the reader takes the one that has the digest. What came in a span that is shorter than it says is not `whole`,
-- so that a list can say that something was cut without reading it; the same piece in another span may be.
CREATE TABLE IF NOT EXISTS contents
(
    run_id  String CODEC(ZSTD(1)),
    digest  String CODEC(ZSTD(1)),
    seen    DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    content String CODEC(ZSTD(1)),
    bytes   UInt64 CODEC(T64, ZSTD(1)),
    mark    UInt64,
    whole   UInt8,
    INDEX run run_id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX cut whole TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(whole)
PARTITION BY toMonth(seen)
ORDER BY (run_id, digest, mark)
SETTINGS index_granularity = 256, index_granularity_bytes = '64Mi', min_bytes_for_wide_part = '1Gi';

-- The pieces of a span are made rows of last: whatever else is read of a span would be copied for each of them.
CREATE MATERIALIZED VIEW IF NOT EXISTS contents_view TO contents AS
SELECT
    run_id,
    splitByChar('.', piece.1)[-1]                               AS digest,
    seen,
    if(startsWith(piece.1, 'agent_replay.content64.'), tryBase64Decode(piece.2), piece.2) AS content,
    length(content)                                            AS bytes,
    sipHash64(content)                                         AS mark,
    whole
FROM
(
    SELECT
        concat(TraceId, '-', SpanAttributes['agent_replay.run'])   AS run_id,
        Timestamp                                                  AS seen,
        mapFilter((k, v) -> match(k, '^agent_replay\\.content(64)?\\.'), SpanAttributes)::Array(Tuple(String, String)) AS pieces,
        toUInt8(SpanAttributes['agent_replay.payload.length'] = ''
            OR toUInt64OrZero(SpanAttributes['agent_replay.payload.length'])
                = arraySum(piece -> length(piece.2), pieces))      AS whole
    FROM otel_traces
    WHERE SpanAttributes['agent_replay.frame'] = 'contents'
        AND match(TraceId, '^[0-9a-f]{32}$') AND match(SpanAttributes['agent_replay.run'], '^[0-9a-f]{16}$')
)
ARRAY JOIN pieces AS piece
WHERE match(digest, '^[0-9a-f]{32}$');
