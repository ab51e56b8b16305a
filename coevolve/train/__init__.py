"""Training: the objective (eq. 5, 7 and 9), the trainers that minimise it, and tiny policies built from nothing."""
