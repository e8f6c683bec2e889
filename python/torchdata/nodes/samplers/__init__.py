"""Nodes that read several nodes, and choose the node that provides the next item."""
