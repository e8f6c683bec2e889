"""Pipes that make several of one, or one of several."""
