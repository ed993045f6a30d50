-- `frames` holds it: what held it before goes, once all of it is there. `runs` is what lists of runs read.
ALTER TABLE runs_view MODIFY QUERY
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
    bitShiftLeft(toUInt64(if(finished, 2, 0) + if(cut, 0, 1)), 60)
        + 1152921504606846975 - toUnixTimestamp64Micro(now64(6))           AS version
FROM otel_traces
WHERE SpanAttributes['agent_replay.frame'] IN ('run', 'run.start')
    AND match(TraceId, '^[0-9a-f]{32}$') AND match(SpanAttributes['agent_replay.run'], '^[0-9a-f]{16}$');

ALTER TABLE runs DROP COLUMN IF EXISTS payload;

DROP TABLE IF EXISTS crossings_view;
DROP TABLE IF EXISTS contents_view;
DROP TABLE IF EXISTS readings_view;
DROP TABLE IF EXISTS crossings;
DROP TABLE IF EXISTS contents;
DROP TABLE IF EXISTS readings;

-- The same names, for whoever asks by SQL: each row once, without FINAL.
CREATE VIEW IF NOT EXISTS crossings AS
SELECT run_id, lane, key, ordinal, span_id, parent_span_id, kind, name, span_kind, started, duration_ns, finished,
    ending, failed, model, input_tokens, output_tokens, attributes, cut, payload_bytes, payload, version
FROM frames FINAL
WHERE frame = 'crossing';

CREATE VIEW IF NOT EXISTS contents AS
SELECT run_id, span_id AS digest, started AS seen, payload AS content, payload_bytes AS bytes, mark
FROM frames FINAL
WHERE frame = 'contents';

CREATE VIEW IF NOT EXISTS readings AS
SELECT run_id, span_id, started, notes, flaws, attributes, cut, payload_bytes, payload, version
FROM frames FINAL
WHERE frame = 'readings';
