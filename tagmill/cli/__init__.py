"""The command line: `tagmill`. Arguments in, one call into the library, a table or JSON out."""

import atexit
import gc
import signal


def command() -> None:
    """Run `tagmill`; while its modules are imported, Ctrl-C ends it without a trace: nothing runs yet."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    atexit.register(
        gc.freeze
    )  # else Python searches all objects for garbage when it ends, a fifth of a second
    from tagmill.cli.main import main

    main()
