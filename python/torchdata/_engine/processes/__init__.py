"""Starts child processes with the data that they inherit from the main process, and ends child processes."""
