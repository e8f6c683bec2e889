"""Files on their way to items, and items on their way to files."""
