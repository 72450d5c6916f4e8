"""Another bucket size: the rows of a view in a new table under the timebuckets of that size, verified, then switched to."""
