"""Files that survive a kill, and who made them from what."""
