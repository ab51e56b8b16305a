"""Tasks as messages; messages as token ids and action masks."""
