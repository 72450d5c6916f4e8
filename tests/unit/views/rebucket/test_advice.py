"""What an operator has to configure after a switch."""

from tagmill.domain.time_buckets import BucketSize, View
from tagmill.views.rebucket.advice import Prefix, of_another_prefix, switched

LINES = switched(View("tag_views_day", BucketSize.DAY), ["orders", "payments"])


def test_lines_name_prefixes_and_pipelines_in_order() -> None:
    """Lines follow the order of the work: the plugin's settings under both prefixes, the pipelines' settings,
    the audits.
    """
    assert [line for line in LINES if not line.startswith("#")] == [
        'pekko.persistence.cassandra.events-by-tag.table = "tag_views_day"',
        'pekko.persistence.cassandra.events-by-tag.bucket-size = "Day"',
        'akka.persistence.cassandra.events-by-tag.table = "tag_views_day"',
        'akka.persistence.cassandra.events-by-tag.bucket-size = "Day"',
        "[pipelines.orders]",
        'view_table = "tag_views_day"',
        'bucket_size = "Day"',
        "[pipelines.payments]",
        'view_table = "tag_views_day"',
        'bucket_size = "Day"',
        "tagmill audit --pipeline orders",
        "tagmill audit --pipeline payments",
    ]


def test_one_prefix_leaves_the_others_lines_out() -> None:
    left_out = [line for line in LINES if of_another_prefix(line, Prefix.AKKA)]
    assert len(left_out) == 2 and all(line.startswith("pekko.") for line in left_out)
    assert not any(of_another_prefix(line, None) for line in LINES)
