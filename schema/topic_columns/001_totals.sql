-- After columns were added to a topic's destination: totals of a batch count them, too. Names in ${} are filled in by `tagmill schema apply`.
ALTER TABLE ${table} ${on_cluster} DROP PROJECTION IF EXISTS batch_totals;

ALTER TABLE ${table} ${on_cluster} ADD PROJECTION batch_totals (
    SELECT `batch_id`, `generation`, count(), sum(${row_checksum}) GROUP BY `batch_id`, `generation`
);

ALTER TABLE ${table} ${on_cluster} MATERIALIZE PROJECTION batch_totals;
