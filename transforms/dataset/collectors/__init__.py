"""What is counted over the Examples of a shard, one module a collector."""
