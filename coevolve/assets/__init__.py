"""What comes from outside, pinned: files, models, container images."""
