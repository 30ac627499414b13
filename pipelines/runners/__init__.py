"""What differs between runners: their options, and jobs on Dataflow."""
