"""BFCL v3 multi-turn: simulated APIs, user turns and gold call sequences of the wheel `bfcl-eval`."""
