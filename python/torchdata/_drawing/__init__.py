"""Draws graphs without external programs: their contents and layout, as SVG, HTML or DOT."""
