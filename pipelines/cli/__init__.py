"""The command line: words, help, progress, logs, signals."""
