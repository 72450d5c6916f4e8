-- Each event once, with its tags. All tags of an event have one time, so a filter on it reaches the table; those that damaged data has
-- under two offsets come apart from the others, with the earlier time. Names in ${} are filled in by `tagmill schema apply`.
CREATE OR REPLACE VIEW ${view} ${on_cluster} AS
SELECT
    `persistence_id`,
    `sequence_nr`,
    arraySort(groupUniqArray(`tag`)) AS `tags`,
    `event_time`,
    any(`writer_uuid`) AS `writer_uuid`,
    any(`ser_id`) AS `ser_id`,
    any(`ser_manifest`) AS `ser_manifest`,
    any(`event_manifest`) AS `event_manifest`,
    any(`event`) AS `event`,
    any(`event_text`) AS `event_text`,
    max(`late`) AS `late`
FROM ${table}
WHERE (`persistence_id`, `sequence_nr`) NOT IN (SELECT `persistence_id`, `sequence_nr` FROM ${twice})
GROUP BY `persistence_id`, `sequence_nr`, `event_time`
UNION ALL
SELECT
    `persistence_id`,
    `sequence_nr`,
    arraySort(groupUniqArray(`tag`)) AS `tags`,
    min(`event_time`) AS `event_time`,
    any(`writer_uuid`) AS `writer_uuid`,
    any(`ser_id`) AS `ser_id`,
    any(`ser_manifest`) AS `ser_manifest`,
    any(`event_manifest`) AS `event_manifest`,
    any(`event`) AS `event`,
    any(`event_text`) AS `event_text`,
    max(`late`) AS `late`
FROM ${table}
WHERE (`persistence_id`, `sequence_nr`) IN (SELECT `persistence_id`, `sequence_nr` FROM ${twice})
GROUP BY `persistence_id`, `sequence_nr`;
