"""Runs workers on other machines, and controls them from the main process."""
