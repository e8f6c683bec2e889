"""Stores the results of other pipes in files."""
