"""The Python half of the codec for items and exceptions that are sent between processes."""
