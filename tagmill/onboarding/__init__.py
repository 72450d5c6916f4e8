"""Ask servers what they hold, and write the configuration file for it: what `tagmill init` does."""
