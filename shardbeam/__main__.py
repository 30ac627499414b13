"""`python -m shardbeam`: the same as the command `shardbeam`."""

import sys

from shardbeam.pipelines.cli import main

sys.exit(main())
