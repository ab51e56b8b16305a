"""What a section of a configuration is, how its files are read, and the rules of play."""
