"""The quality gate of a run, and what audits share with it: Great Expectations judges small reports, and
pages keep the results.
"""
