"""Layers as the memory of agents in reinforcement-learning libraries: the extra ``rl``.

    multistable.rl.torchrl    RecurrentModule, for TorchRL: in the place of torchrl.modules.GRUModule
    multistable.rl.sb3        RecurrentPolicy, for RecurrentPPO of sb3-contrib: in the place of MlpLstmPolicy

Nothing here is imported by ``import multistable``, and each file needs its own library only. A training loop of your
own needs neither: hand ``reset`` to the layer, as ``examples/ppo_memory.py`` does.
"""
