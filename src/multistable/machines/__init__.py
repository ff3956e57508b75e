"""Finite state machines: targets to learn, a model that learns them, and the proof that it has."""

from multistable.machines.certify import Verdict, certify
from multistable.machines.extract import extract
from multistable.machines.machine import Machine
from multistable.machines.transducer import Transducer

__all__ = ["Machine", "Transducer", "Verdict", "certify", "extract"]
