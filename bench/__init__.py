"""Benchmarks to run by hand: each measures Tagmill and a peer on the same data in the same run.

The results are in bench/README.md.
"""
