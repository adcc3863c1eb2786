"""The self-test: checks that show what a Python environment with torch computes, and whether it computes the same bits each time.

    python -m envlock.selftest --help

Runs in any container or environment that has torch 1.13 or newer; needs the standard library, torch and NumPy. See protocol.py for
what it prints, checks.py for what a check is, and one module per group of checks in groups/.
"""
