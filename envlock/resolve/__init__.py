"""From a spec to the pins of its lock: the only code that locks over the network."""
