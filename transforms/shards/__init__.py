"""Writes the shards of a dataset."""
