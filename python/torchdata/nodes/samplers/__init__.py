"""Nodes that read several nodes, and choose which one provides the next item."""
