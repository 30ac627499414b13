"""A dataset on its way to the disk and back: shards, staging, commit, metadata."""
