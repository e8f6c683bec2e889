"""Pictures of graphs, drawn without external programs: their contents, their layout, and their output as SVG or DOT.

Independent of pipes and statistics.
"""
