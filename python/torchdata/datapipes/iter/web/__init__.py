"""Files behind URLs."""
