"""Pipes that turn one item into one, several or no items."""
