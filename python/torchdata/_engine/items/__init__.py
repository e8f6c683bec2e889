"""Items and exceptions sent between processes: the Python half of the codec. Private."""
