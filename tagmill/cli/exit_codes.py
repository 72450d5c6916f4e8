"""The exit statuses of all commands; tagmill.errors has them by kind of error."""

EXIT_CODES = {
    0: "Done, or there was nothing to do.",
    1: "A defect of Tagmill; the line names a file with the trace.",
    2: "An input, the configuration or a right is wrong: a person has to act. Also where a question was answered no.",
    3: "Data: the quality gate stopped a run, or something differs, is missing or is held.",
    75: "It passes: a server did not answer, or another run is under way. Run the same command again.",
    130: "Stopped by Ctrl-C; 143: by SIGTERM. Safe to run again. 141: who read the output has gone.",
}
EPILOG = "\n\n".join(("Exit status:", *(f"{code}  {meaning}" for code, meaning in EXIT_CODES.items())))
