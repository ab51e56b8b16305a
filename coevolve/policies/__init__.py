"""Policies: given conversations, the next action of each."""
