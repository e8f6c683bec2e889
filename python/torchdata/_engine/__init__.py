"""The processes around the Rust engine: starting, commanding, watching and ending them. Private."""
