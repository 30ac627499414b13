"""Compares a dataset with its manifest."""
