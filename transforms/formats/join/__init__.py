"""Joins annotations with images."""
