"""Benchmarks, run by hand: each beside a peer on the same data in the same run. Results stand in bench/README.md."""
