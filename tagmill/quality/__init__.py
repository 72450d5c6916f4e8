"""The quality gate of a run: Spark makes small reports in one pass, Great Expectations judges them, pages keep it."""
