"""Open Images."""
