-- the run of each batch, noted before it is sent: a ledger that ends with an earlier run is older than this table
CREATE TABLE IF NOT EXISTS ${batches} ${on_cluster} (
    `run` UInt64,
    `number` UInt32,
    `batch_id` UUID,
    `tag` String
)
ENGINE = ${engine}
ORDER BY (`run`, `number`);
