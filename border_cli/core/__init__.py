"""The vocabulary: plain data and protocols. Imports only the standard library and numpy."""
