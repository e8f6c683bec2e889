"""Pipes that read files from URLs."""
