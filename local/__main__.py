"""What bin/run calls: the demo."""

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while the imports last, Ctrl-C ends it without a trace; nothing runs yet
    from local.demo import app

    app(prog_name="bin/run")
