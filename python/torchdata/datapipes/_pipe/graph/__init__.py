"""The graph of pipes: finds the sources of each pipe without serializing, and recognizes the graph of a saved state."""
