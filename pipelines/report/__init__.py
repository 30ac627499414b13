"""`shardbeam report`: a dataset as one page of HTML that needs nothing but itself."""
