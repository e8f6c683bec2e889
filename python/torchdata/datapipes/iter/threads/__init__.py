"""Pipes that work in their own threads."""
