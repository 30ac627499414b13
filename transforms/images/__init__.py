"""Checks, converts and encodes one image at a time."""
