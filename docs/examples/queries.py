# %% [markdown]
# Queries as DataFrames, on the stack that `bin/run` keeps up. Cell by cell in an editor that knows `# %%`, or at once:
#
#     export TAGMILL_CONFIG=build/local/tagmill.toml
#     build/venvs/spark/bin/python docs/examples/queries.py

# %%
"""Reads the journal `orders` by tag and by persistence_id, as its plugin would."""

from pyspark.sql import functions as F

from tagmill.config.settings import Settings
from tagmill.queries import ReadJournal
from tagmill.spark.session import session

settings = Settings.load()
spark = session(settings, name="queries")
journal = ReadJournal(spark, settings, "orders")

# %% [markdown]
# Who is there?

# %%
journal.current_persistence_ids().orderBy("persistence_id").show(5)

# %% [markdown]
# One order, from its first event to its last. The payload is bytes; here they are JSON.

# %%
one = journal.current_events_by_persistence_id("o-000001")
one.select("sequence_nr", "event_time", "tags", F.col("event").cast("string")).show(5, truncate=60)

# %% [markdown]
# All events with a tag, in the order in which `currentEventsByTag` delivers them.

# %%
orders = journal.current_events_by_tag("order")
orders.select("persistence_id", "tag_pid_sequence_nr", "offset", "event_time", "ser_manifest").show(
    5, truncate=False
)

# %% [markdown]
# Read some, remember the last offset, go on behind it. `limit` reads no more buckets than it needs.

# %%
read = 100
some = orders.limit(read).collect()
later = journal.current_events_by_tag("order", offset=some[-1]["offset"])
print(f"{len(some)} events read, {later.count()} behind {some[-1]['offset']}")

# %% [markdown]
# From here on it is a DataFrame like any other: what is it that was ordered, and for how much?

# %%
order = F.from_json(F.col("event").cast("string"), "type string, amount double, currency string")
by_type = (
    orders.select(order.alias("order"))
    .groupBy("order.type", "order.currency")
    .agg(F.count("*").alias("events"), F.sum("order.amount").alias("amount"))
)
by_type.show()
