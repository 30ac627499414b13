"""Compares two datasets: what was added, removed, moved or changed."""
