"""The stages of the second paper, one module each."""
