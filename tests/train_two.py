"""Started by a launcher in several processes: train one run together (see test_processes.py)."""

import json
import sys

import torch

from multistable.training import Options, Run, train_run

torch.set_num_threads(1)
train_run(Run.from_dict(json.loads(sys.argv[1])), sys.argv[2], Options(device="cpu"))
