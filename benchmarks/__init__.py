"""Measurements: what the README states, made again by a command."""
