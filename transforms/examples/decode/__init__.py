"""Reads Examples back."""
