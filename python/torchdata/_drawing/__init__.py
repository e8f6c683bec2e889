"""Draws pictures of graphs without external programs: defines their contents and layout, and writes SVG or DOT.

This package does not depend on pipes or statistics.
"""
