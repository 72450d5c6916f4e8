"""The quality gate of a run, and what audits share with it: Great Expectations judges small reports, pages keep what it says."""
