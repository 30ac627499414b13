"""Beam code that several stages share."""
