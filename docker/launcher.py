"""What Dataflow's Flex Templates start in the image (FLEX_TEMPLATE_PYTHON_PY_FILE)."""

import sys

from shardbeam.pipelines.interrupts import end_on_signals

if __name__ == "__main__":
    end_on_signals()
    # Imported here, so that a signal during the imports ends the launcher as at any other moment.
    from shardbeam.pipelines.flex_template import launch

    sys.exit(launch(sys.argv[1:]))
