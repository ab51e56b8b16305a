"""Running one job."""
