"""Pipes that reorder, repeat, group or store items, or divide items among processes."""
