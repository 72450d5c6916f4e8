"""A Kafka Journal in a real Airflow is replicated and purged of expired ids, and without new records no Spark
starts.
"""

from tests.support.kafka import Topic, create

REPLICATE, PURGE = "replicate_carts", "purge_expired_carts"


def test_dags_replicate_and_purge_kafka_journal(airflow, stack, kafka):
    topic = Topic(kafka.port, "carts-1")
    create(kafka.port, topic.name)
    topic.append("cart", [(1, "a"), (2, "b")])
    topic.append("short-lived", [(1, "a")], expire_after="1 day")
    topic.flush()

    def rows():
        found = stack.session.execute("SELECT id, seq_nr FROM carts_by_airflow.journal")
        return sorted((row.id, row.seq_nr) for row in found)

    assert list(airflow.first_run(REPLICATE).values()) == ["success"]
    assert rows() == [("cart", 1), ("cart", 2), ("short-lived", 1)]
    with airflow.lookout() as seen:
        idle = airflow.api.trigger(REPLICATE)
        airflow.succeed(REPLICATE, idle)
    assert airflow.tasks(REPLICATE, idle) == {"look": "skipped", "replicate": "skipped"} and not seen.jvms
    assert list(airflow.first_run(PURGE, {"dry_run": False}).values()) == ["success"]
    airflow.succeed(REPLICATE, airflow.api.trigger(REPLICATE))
    assert rows() == [("cart", 1), ("cart", 2)]
