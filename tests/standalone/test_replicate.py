"""A Kafka Journal in a real Airflow is replicated and, after an approval, purged of expired ids; few
records start no JVM.
"""

from tests.support.kafka import Topic, create

REPLICATE, MAINTENANCE = "replicate_carts", "maintenance_carts"


def test_dags_replicate_and_purge_kafka_journal(airflow, stack, kafka):
    topic = Topic(kafka.port, "carts-1")
    create(kafka.port, topic.name)
    topic.append("cart", [(1, "a"), (2, "b")])
    topic.append("short-lived", [(1, "a")], expire_after="1 day")
    topic.flush()

    def rows():
        found = stack.session.execute("SELECT id, seq_nr FROM carts_by_airflow.journal")
        return sorted((row.id, row.seq_nr) for row in found)

    with airflow.lookout() as seen:
        assert list(airflow.first_run(REPLICATE).values()) == ["success"]
    assert rows() == [("cart", 1), ("cart", 2), ("short-lived", 1)] and not seen.jvms
    with airflow.lookout() as seen:
        idle = airflow.api.trigger(REPLICATE)
        airflow.succeed(REPLICATE, idle)
    assert airflow.tasks(REPLICATE, idle) == {"look": "skipped", "replicate": "skipped"} and not seen.jvms

    # With the form's defaults a dry run is all; with dry_run off a person rejects it once, then approves.
    assert list(airflow.first_run(MAINTENANCE).values()) == ["success"]
    (run,) = airflow.api.runs(MAINTENANCE)
    only_dry = {"dry_run": "success", "approve": "skipped", "change": "skipped"}
    assert airflow.tasks(MAINTENANCE, run) == only_dry
    for answer, change in (("Reject", "skipped"), ("Approve", "success")):
        run = airflow.api.trigger(MAINTENANCE, {"dry_run": False})
        asked = airflow.answer(MAINTENANCE, run, answer)
        assert asked["subject"] == "kafka-journal purge-expired of carts"
        assert "    purged: 1\n" in asked["body"], asked["body"]
        airflow.succeed(MAINTENANCE, run)
        assert airflow.tasks(MAINTENANCE, run) == {
            "dry_run": "success",
            "approve": "success",
            "change": change,
        }
        airflow.succeed(REPLICATE, airflow.api.trigger(REPLICATE))
        kept = [("short-lived", 1)] if answer == "Reject" else []
        assert rows() == [("cart", 1), ("cart", 2), *kept]
