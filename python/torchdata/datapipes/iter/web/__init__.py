"""Files after URLs."""
