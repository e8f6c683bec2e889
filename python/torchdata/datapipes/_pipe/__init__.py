"""Parts that all pipes share: checks, traversal, columns, streams, seeds, functional forms."""
