"""CSV, JSON Lines and Parquet."""
