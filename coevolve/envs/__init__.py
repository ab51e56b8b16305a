"""Text environments behind one protocol."""
