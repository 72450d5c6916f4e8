-- The destination of one pipeline, and a view of it. Names in ${} are filled in by `tagmill schema apply`.
-- The deduplication windows hold more than seven days of batches; the projection answers for a batch's totals in milliseconds.
CREATE TABLE IF NOT EXISTS ${table} ${on_cluster} (
    ${columns},
    `batch_id` UUID,
    `generation` UInt32,
    `event_text` String ALIAS ${event_text},
    PROJECTION batch_totals (
        SELECT `batch_id`, `generation`, count(), sum(${row_checksum}) GROUP BY `batch_id`, `generation`
    )
)
ENGINE = ${engine}
PARTITION BY toYYYYMM(`event_time`)
ORDER BY (`tag`, `persistence_id`, `sequence_nr`)
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

-- events that damaged data has under two offsets: the view shows each once
CREATE TABLE IF NOT EXISTS ${twice} ${on_cluster} (
    `persistence_id` String,
    `sequence_nr` Int64
)
ENGINE = ${engine}
ORDER BY (`persistence_id`, `sequence_nr`);
