"""Rules and values without I/O."""
