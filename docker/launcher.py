"""What Dataflow's Flex Templates start in the image (FLEX_TEMPLATE_PYTHON_PY_FILE)."""

import sys

from shardbeam.pipelines.cli.logging import render_interrupt
from shardbeam.pipelines.interrupts import end_on_signals

if __name__ == "__main__":
    with end_on_signals(render_interrupt):
        # Imported here, so that a signal during the imports ends the launcher, too.
        from shardbeam.pipelines.commands.flex_template import launch

        code = launch(sys.argv[1:])
    sys.exit(code)
