"""Deliver tag_views: plan, judge, seal, push, verify and close a run."""
