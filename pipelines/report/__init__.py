"""`shardbeam report`: shows a dataset on one self-contained HTML page."""
