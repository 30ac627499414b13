"""Finds images that are in a dataset several times."""
