"""Pipes that determine the order, repetition, grouping and process of items."""
