"""Pipes that work in threads of their own."""
