"""Workers on other machines: the actors that run these workers, and the objects that represent the actors in the main
process. Private."""
