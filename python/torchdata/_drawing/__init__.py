"""Pictures of graphs, drawn without external programs: their contents, their layout, and their output as SVG or DOT.

This package does not depend on pipes or statistics.
"""
