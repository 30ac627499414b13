"""CSV and JSON Lines."""
