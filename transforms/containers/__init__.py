"""Files that hold many serialized Examples."""
