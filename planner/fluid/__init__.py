"""Closed forms of three schedulers' theories: pure functions of numbers and arrays.

``rad`` and ``slai`` (Bari et al.), ``exclusive`` and ``crossover`` (threshold-based exclusive batching), ``wait`` and
``nested_wait`` (Ao et al.). Printed and corrected formulas stand side by side; the corrected one is the default.
"""
