"""Results in the formats of other tools. Nothing is uploaded."""
