"""Modules that write, commit, check and read a dataset."""
