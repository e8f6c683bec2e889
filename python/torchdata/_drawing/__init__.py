"""Draws pictures of graphs without external programs. The modules define the contents of a picture, compute its layout,
and write SVG or DOT.

This package does not depend on pipes or statistics.
"""
