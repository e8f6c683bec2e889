"""Draws graphs without external programs: their contents and layout, as SVG, HTML or DOT.

This package does not depend on pipes or statistics.
"""
