"""What every other room uses: records, keys, splits, labels, counts."""
