"""The command line: `tagmill`. Arguments in, one call into the library, a table or JSON out."""

import signal


def command() -> None:
    """Run `tagmill`; while its modules are imported, Ctrl-C ends it without a trace: nothing runs yet."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tagmill.cli.main import main

    main()
