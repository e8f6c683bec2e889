"""Pipes that store the results of other pipes in files."""
