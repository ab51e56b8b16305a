"""What several stages share: playing, training, and the results that products are made of."""
