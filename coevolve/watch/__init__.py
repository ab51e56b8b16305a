"""Following a run: its state, its output, and checks before it."""
