"""Nodes that read several nodes, and choose from which the next item comes."""
