"""The graph of pipes: finds which pipe reads which without serializing, and recognizes the graph of a saved state."""
