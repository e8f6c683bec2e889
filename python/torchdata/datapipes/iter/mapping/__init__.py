"""One item in, one item, none or several out."""
