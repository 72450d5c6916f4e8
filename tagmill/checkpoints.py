"""Named instants of a step. They do nothing, unless TAGMILL_PAUSE_AT names one: then the step says so and waits there.

Fault tests kill or freeze a step at an exact instruction with them: the file $TAGMILL_PAUSE_FILE appears, the step goes on when it is
removed.
"""

import os
import time
from pathlib import Path


def reached(name: str) -> None:
    """This instant is reached."""
    if os.environ.get("TAGMILL_PAUSE_AT") != name:
        return
    file = Path(os.environ["TAGMILL_PAUSE_FILE"])
    file.write_text(f"{name} {os.getpid()}\n", encoding="utf-8")
    while file.exists():
        time.sleep(0.05)
