"""Started by torch's launcher: a sequence cut over ranks gives what one process computes. See test_sequence.py.

Each rank computes the whole by itself and compares its piece. Whatever is wrong raises, which ends the launcher.
"""
