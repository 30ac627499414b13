"""Checking, converting and storing the pixels of one image."""
