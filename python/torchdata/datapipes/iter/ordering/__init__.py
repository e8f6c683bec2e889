"""Pipes that determine the order, repetition and grouping of items, or the process that receives an item."""
