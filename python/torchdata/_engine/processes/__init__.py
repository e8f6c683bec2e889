"""Child processes, whatever they run: how they start, what they leave to main, and how they end. Private."""
