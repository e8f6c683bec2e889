"""Archives and compressed files."""
