"""Find gaps in the numbers of a persistence_id from the key columns alone, and name them as the plugin's
streams do.
"""

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from tagmill.errors import EventsMissing

NAMED = 10


def refuse(judged: DataFrame, number: str, of: str, way_out: str) -> int:
    """Raise EventsMissing where a number is missing or comes too late; else return how many rows repeat an
    earlier one.

    In: `persistence_id`, `number`, `before` (the highest number in front of this row; null: none), `again`
    (an earlier row has the same event). The error calls the number by its column's name (`number`), and says
    what has the gap (`of`).
    """
    gap = F.col("number") > F.col("before") + 1
    late = (F.col("number") <= F.col("before")) & ~F.col("again")
    line = judged.agg(F.count_if(gap | late).alias("wrong"), F.count_if("again").alias("again")).first()
    assert line is not None
    if not line["wrong"]:
        return int(line["again"])
    rows = judged.where(gap | late).orderBy(late, "persistence_id", "number").limit(NAMED).collect()
    more = f" and {line['wrong'] - len(rows)} more" if line["wrong"] > len(rows) else ""
    raise EventsMissing(
        f"{of}: {number} of {', '.join(map(_said, rows))}{more}. Nothing was returned. "
        f'What is there, gaps or not, comes with gaps="keep"; {way_out}'
    )


def _said(row: Row) -> str:
    first, last = row["before"] + 1, row["number"] - 1
    if last < first:
        return f"{row['persistence_id']!r}: {row['number']} comes behind {row['before']}"
    return f"{row['persistence_id']!r}: {first if first == last else f'{first} to {last}'} missing"
