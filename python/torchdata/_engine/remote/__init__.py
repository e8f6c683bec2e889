"""Workers on other machines: the actors that run them, and the main process's side of each. Private."""
