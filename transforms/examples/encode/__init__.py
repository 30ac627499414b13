"""Encodes records as Examples."""
