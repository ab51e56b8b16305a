"""Files that survive a kill, and their provenance."""
