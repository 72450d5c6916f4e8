"""The command line: `tagmill`. Arguments in, one call into the library, a table or JSON out."""
