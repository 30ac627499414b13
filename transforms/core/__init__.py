"""What all of the other rooms speak of: records, keys, splits, labels, counts."""
