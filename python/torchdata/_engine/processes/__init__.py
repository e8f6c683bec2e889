"""Child processes, whatever they run: how they start, what they leave to the main process, and how they end.
Private."""
