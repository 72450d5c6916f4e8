-- The destination of one pipeline of kind topic or kafka_journal_events. Names in ${} are filled in by `tagmill schema apply`.
CREATE TABLE IF NOT EXISTS ${table} ${on_cluster} (
    ${columns},
    `batch_id` UUID,
    `generation` UInt32,
    PROJECTION batch_totals (
        SELECT `batch_id`, `generation`, count(), sum(${row_checksum}) GROUP BY `batch_id`, `generation`
    )
)
ENGINE = ${engine}
PARTITION BY toYYYYMM(`created_at`)
ORDER BY (${order})
SETTINGS
    non_replicated_deduplication_window = 100000,
    replicated_deduplication_window = 100000,
    replicated_deduplication_window_seconds = 1209600,
    lightweight_mutation_projection_mode = 'rebuild',
    deduplicate_merge_projection_mode = 'rebuild';

-- batches that were given up: an insert that wakes up late finds its id here and does nothing
CREATE TABLE IF NOT EXISTS ${voided} ${on_cluster} (
    `batch_id` UUID,
    `voided_at` DateTime DEFAULT now()
)
ENGINE = ${engine}
ORDER BY `batch_id`;
