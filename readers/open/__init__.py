"""Opens datasets of Shardbeam and of TFDS, and other TFRecord files."""
