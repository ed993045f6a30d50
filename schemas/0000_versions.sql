-- Which of these files have been applied. Run before any other, always.
CREATE TABLE IF NOT EXISTS schema_versions
(
    version UInt32,
    name    String,
    digest  String,
    applied DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(applied)
ORDER BY version;
