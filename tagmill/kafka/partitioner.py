"""Tell in which partition Kafka's default partitioner puts a key, now and when the topic had fewer partitions.

Where a topic gets more partitions its keys move. Nothing in Kafka orders a key's records in one partition and in another: timestamps are
what producers' clocks say. The partitioner does: what it puts into the key's partition of today is newer than what is in another one.

Source: BuiltInPartitioner.partitionForKey and Utils.murmur2 of Kafka's clients.
"""

# the layout of records that are in the partition where today's partitioner puts their key
HOME = 2**31 - 1
MULTIPLIER, SEED, BITS = 0x5BD1E995, 0x9747B28C, 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return Kafka's 32-bit hash of a key."""
    whole = len(key) - len(key) % 4
    value = SEED ^ len(key)
    for place in range(0, whole, 4):
        word = int.from_bytes(key[place : place + 4], "little") * MULTIPLIER & BITS
        word = (word ^ word >> 24) * MULTIPLIER & BITS
        value = (value * MULTIPLIER & BITS) ^ word
    if whole < len(key):
        value = (value ^ int.from_bytes(key[whole:], "little")) * MULTIPLIER & BITS
    value = (value ^ value >> 13) * MULTIPLIER & BITS
    return value ^ value >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key in a topic with so many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def layout_of(key: bytes, partition: int, partitions: int) -> int:
    """Return with how many partitions at most the topic had this key in a partition; HOME: with today's; 0: never."""
    if partitions == 1:
        return HOME
    value = murmur2(key) & 0x7FFFFFFF
    if value % partitions == partition:
        return HOME
    return next((count for count in range(partitions - 1, partition, -1) if value % count == partition), 0)
