"""The graph of pipes: what reads what, found without serialising anything, and how a state knows it again."""
