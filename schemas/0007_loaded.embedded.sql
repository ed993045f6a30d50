-- How far each spool file has been loaded. A row is written after what it covers, so that a load that is killed
-- is repeated from where the last one ended, and the tables before this one remove what came twice.
CREATE TABLE IF NOT EXISTS loaded
(
    file    String,
    offset  UInt64,
    damaged Bool,
    seen    DateTime64(9, 'UTC')
)
ENGINE = ReplacingMergeTree(seen)
ORDER BY file;

-- Which runs a file has frames of: files that share one are removed together or not at all.
CREATE TABLE IF NOT EXISTS loaded_runs
(
    file   String,
    run_id String
)
ENGINE = ReplacingMergeTree
ORDER BY (file, run_id);

-- Stretches of spool files in which a frame of a run may have been lost.
CREATE TABLE IF NOT EXISTS damages
(
    run_id String,
    file   String,
    offset UInt64,
    why    String
)
ENGINE = ReplacingMergeTree
ORDER BY (run_id, file, offset);
