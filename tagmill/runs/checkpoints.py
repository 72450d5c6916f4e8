"""Named instants of a step, at which fault tests kill or freeze it.

They do nothing unless TAGMILL_PAUSE_AT names one.

At the named instant, the step writes the file $TAGMILL_PAUSE_FILE, waits, and goes on when the file is
removed.
"""

import os
import time
from pathlib import Path


def reached(name: str) -> None:
    """Say that an instant is reached; if TAGMILL_PAUSE_AT names it, write $TAGMILL_PAUSE_FILE and wait until
    that is removed.
    """
    if os.environ.get("TAGMILL_PAUSE_AT") != name:
        return
    file = Path(os.environ["TAGMILL_PAUSE_FILE"])
    file.write_text(f"{name} {os.getpid()}\n", encoding="utf-8")
    while file.exists():
        time.sleep(0.05)
