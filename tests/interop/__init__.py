"""Tests of Tagmill with the real pekko-persistence-cassandra: what one writes, the other reads."""
