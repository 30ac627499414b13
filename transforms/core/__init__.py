"""Records, keys, splits, labels and counts, which all other packages use."""
