"""Helpers that all pipes share: argument checks, graph traversal, columns, streams, seeds and functional forms."""
