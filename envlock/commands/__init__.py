"""The commands: each parses, calls and prints. Nothing heavy is imported at a module's top, so that `envlock --help` answers at once."""
