"""Spec + catalogue -> stack, or why not and what would work; and the same rules asked again of what was locked."""

from envlock.stack.closure import check_closure, completed
from envlock.stack.describe import describe, located, located_problems
from envlock.stack.solution import BaseFacts, Solution
from envlock.stack.solve import solve
from envlock.stack.table import StackRow, stack_rows

__all__ = [
    "BaseFacts",
    "Solution",
    "StackRow",
    "check_closure",
    "completed",
    "describe",
    "located",
    "located_problems",
    "solve",
    "stack_rows",
]
