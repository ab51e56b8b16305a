"""Policies behind one protocol."""
