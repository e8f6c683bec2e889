"""The state of pipes: what it is declared to be, how iterations begin and are resumed, and its layout."""
