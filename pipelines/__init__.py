"""The programs: the command line, the graphs, the reports."""
