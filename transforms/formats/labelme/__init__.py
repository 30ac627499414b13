"""LabelMe."""
