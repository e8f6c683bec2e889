"""Keeping what others make in files."""
