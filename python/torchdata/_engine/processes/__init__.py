"""Child processes of any program: how they start, what they inherit from the main process, how they end. Private."""
