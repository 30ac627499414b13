"""The page of `shardbeam report`."""
