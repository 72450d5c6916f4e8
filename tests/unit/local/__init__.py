"""The local stack, as far as it can be tested without a server."""
