"""Decides whether a dataset is committed, and commits it."""
