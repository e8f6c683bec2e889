"""Items and exceptions on their way between processes: the Python half of the codec. Private."""
