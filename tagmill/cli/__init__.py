"""The command line: thin commands over the library; every list also comes as JSON."""
