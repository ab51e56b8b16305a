"""Suites and machines: strict, typed YAML."""
