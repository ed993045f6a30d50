-- Content that a run has recorded once and refers to by digest; what no run refers to is not kept, and what two runs
-- hold is kept for each. A piece that some hop cut stands beside the whole one, and so does whatever else claims to
-- be it: the reader takes the one that has the digest.
CREATE TABLE IF NOT EXISTS contents
(
    run_id  String CODEC(ZSTD(1)),
    digest  String CODEC(ZSTD(1)),
    seen    DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    content String CODEC(ZSTD(1)),
    bytes   UInt64 CODEC(T64, ZSTD(1)),
    mark    UInt64,
    INDEX run run_id TYPE bloom_filter(0.001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toMonth(seen)
ORDER BY (run_id, digest, mark)
SETTINGS index_granularity = 256, index_granularity_bytes = '64Mi', min_bytes_for_wide_part = '1Gi';

CREATE MATERIALIZED VIEW IF NOT EXISTS contents_view TO contents AS
SELECT
    concat(TraceId, '-', SpanAttributes['agent_replay.run'])   AS run_id,
    splitByChar('.', piece.1)[-1]                               AS digest,
    Timestamp                                                  AS seen,
    if(startsWith(piece.1, 'agent_replay.content64.'), tryBase64Decode(piece.2), piece.2) AS content,
    length(content)                                            AS bytes,
    sipHash64(content)                                         AS mark
FROM otel_traces
ARRAY JOIN mapFilter((k, v) -> startsWith(k, 'agent_replay.content'), SpanAttributes)::Array(Tuple(String, String)) AS piece
WHERE SpanAttributes['agent_replay.frame'] = 'contents'
    AND match(TraceId, '^[0-9a-f]{32}$') AND match(SpanAttributes['agent_replay.run'], '^[0-9a-f]{16}$')
    AND match(digest, '^[0-9a-f]{32}$');
