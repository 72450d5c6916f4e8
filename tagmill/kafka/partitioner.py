"""Compute the partition of a key by Kafka's default partitioner, now and when the topic had fewer partitions.

If a topic gets more partitions, its keys move. Kafka itself does not order a key's records across partitions:
timestamps are what producers' clocks say. The partitioner does: records in the key's partition of today are
newer than those in another one.

Source: BuiltInPartitioner.partitionForKey and Utils.murmur2 of Kafka's clients.
"""

# Layout of records in the partition where the partitioner puts their key with today's number of partitions.
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
    """Return the partition of a key in a topic with this number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def layout_of(key: bytes, partition: int, partitions: int) -> int:
    """Return the highest number of partitions with which the topic put this key into a partition; HOME:
    today's; 0: none did.
    """
    if partitions == 1:
        return HOME
    value = murmur2(key) & 0x7FFFFFFF
    if value % partitions == partition:
        return HOME
    return next((count for count in range(partitions - 1, partition, -1) if value % count == partition), 0)
