"""Words that help: the nearest known name, and what other tools' words are called here."""
