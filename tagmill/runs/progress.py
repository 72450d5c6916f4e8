"""How long work tells a person how far it is."""

from collections.abc import Callable

Tell = Callable[[str], None]
