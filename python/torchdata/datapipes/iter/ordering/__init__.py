"""Pipes that determine the order, repetition and grouping of items, and the process that handles them."""
