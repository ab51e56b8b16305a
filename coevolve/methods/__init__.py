"""Training data from episodes: preference pairs (eq. 6 and 8, IPR) and rejection sampling."""
