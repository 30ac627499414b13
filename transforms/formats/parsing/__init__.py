"""Parsers of the files that several formats have: JSON, XML, lines, key files."""
