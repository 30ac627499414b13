"""What Dataflow's Flex Templates start in the image (FLEX_TEMPLATE_PYTHON_PY_FILE)."""

import sys

from shardbeam.pipelines.flex_template import launch

if __name__ == "__main__":
    sys.exit(launch(sys.argv[1:]))
