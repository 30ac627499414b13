"""The dataset config: its schema, its loader, and ready YAML files."""
