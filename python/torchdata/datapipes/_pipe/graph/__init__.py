"""Finds the sources of each pipe without serializing the pipes, and checks that a saved state belongs to the graph."""
