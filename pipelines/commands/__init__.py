"""The commands, one in each file; `build` is in `pipelines.cli.run`."""
