"""The protocol of runs and jobs: where their files are, and who may read them."""
