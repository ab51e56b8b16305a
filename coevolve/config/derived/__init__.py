"""Behaviour that follows from the values of a configuration; unlike their declarations it is in the code digest."""
