"""The configuration: typed schema, checks, suggestions, presets. Imports neither torch nor gymnasium."""
