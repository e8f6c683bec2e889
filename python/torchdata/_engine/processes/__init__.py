"""Starts child processes, passes them what they inherit from the main process, and ends them."""
