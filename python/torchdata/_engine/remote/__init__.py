"""Workers on other machines: the actors that run them, and the objects that the main process uses for them. Private."""
