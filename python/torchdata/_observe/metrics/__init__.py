"""Measurements of a loader for other programs."""
