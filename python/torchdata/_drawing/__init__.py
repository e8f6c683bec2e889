"""Pictures of graphs, drawn without any program: what they show, where everything lies, and SVG or DOT of it.

Stands at the bottom and knows neither pipes nor statistics.
"""
