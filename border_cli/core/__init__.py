"""The vocabulary: plain data and protocols. Imports nothing but the standard library and numpy."""
