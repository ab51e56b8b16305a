"""Pairs and selections: what is trained on."""
