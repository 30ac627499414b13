"""What the folder of a dataset holds: manifest, index, statistics, rejects."""
