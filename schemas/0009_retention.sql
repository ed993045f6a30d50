-- Runs that somebody holds: they and what they need are kept until they are released. The last word counts.
CREATE TABLE IF NOT EXISTS holds
(
    run_id String,
    held   Bool,
    reason String,
    since  DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree(since)
ORDER BY run_id;

-- Runs that retention has removed, written before anything of them is: a removal that was cut off is finished by the
-- next, and what arrives of such a run afterwards (a late retry) is removed too.
CREATE TABLE IF NOT EXISTS expired
(
    run_id  String,
    failed  Bool,
    last    DateTime64(9, 'UTC'),
    removed DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree(removed)
ORDER BY run_id
TTL toDateTime(removed) + INTERVAL 400 DAY;
