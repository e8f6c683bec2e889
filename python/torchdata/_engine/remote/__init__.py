"""Workers on other machines: the actors that run them, and main's side of each. Private."""
