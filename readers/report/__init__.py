"""The page of `shardbeam report`, and the pictures on it."""
