"""Settings: the configuration file's sections, their checks, and the reference page made from them."""
