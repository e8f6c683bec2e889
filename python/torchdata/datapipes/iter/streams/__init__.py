"""Pipes that read items from files, or write items to files."""
