-- Content that a run has recorded once and refers to by digest. A piece that some hop cut is shorter than the
-- whole one, so the longer stays.
CREATE TABLE IF NOT EXISTS contents
(
    run_id  String CODEC(ZSTD(1)),
    digest  String CODEC(ZSTD(1)),
    seen    DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    content String CODEC(ZSTD(1)),
    bytes   UInt64 CODEC(T64, ZSTD(1))
)
ENGINE = ReplacingMergeTree(bytes)
PARTITION BY toYYYYMM(seen)
ORDER BY (run_id, digest)
SETTINGS index_granularity = 1024, index_granularity_bytes = '64Mi';

CREATE MATERIALIZED VIEW IF NOT EXISTS contents_view TO contents AS
SELECT
    concat(TraceId, '-', SpanAttributes['agent_replay.run'])   AS run_id,
    splitByChar('.', piece.1)[-1]                               AS digest,
    Timestamp                                                  AS seen,
    if(startsWith(piece.1, 'agent_replay.content64.'), tryBase64Decode(piece.2), piece.2) AS content,
    length(content)                                            AS bytes
FROM otel_traces
ARRAY JOIN mapFilter((k, v) -> startsWith(k, 'agent_replay.content'), SpanAttributes)::Array(Tuple(String, String)) AS piece
WHERE SpanAttributes['agent_replay.frame'] = 'contents';
