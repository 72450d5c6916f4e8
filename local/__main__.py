"""Run the demo for bin/run."""

import signal

if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # Ctrl-C during the imports ends it without a traceback; nothing runs yet
    from local.demo import app

    app(prog_name="bin/run")
