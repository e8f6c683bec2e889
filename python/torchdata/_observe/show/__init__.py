"""Displays loaders as tables, pictures, notebook output, progress bars and words."""
