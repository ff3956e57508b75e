"""Models: ``build_model(ModelConfig(cells=("lru", "lru", "bmru"), ...))`` makes a network of one block per layer name.

What the paper leaves open, and how it is decided here:

========================= =================================================================================
order within a block      ``x + GLU(out_proj(cell(norm(x))))``, norm first, as in S4 and LRU, which the paper follows.
read-out                  A matrix without bias: the GLU's linear map follows directly and has one. It belongs to the
                          block and not to the layer, so that other modules can read a layer's features.
GLU                       A linear map from H to 2H, then ``a * sigmoid(b)``: without the map half of H would be lost.
skip                      ``skip * norm(x)`` with ``skip ~ N(0, 1)`` if the layer contains an LRU (its ``D``). The
                          equations of the BMRU have none.
initialisation            Linear maps between the layers: variance 1 / (number of inputs), or that of ``nn.Linear``, a
                          third of it (``initial``). BMRU: that of ``nn.Linear``, alpha = 1, and ``beta_bias``; with
                          positions each unit is tuned to a timestep of its own (``PositionConfig.tuning``). LRU: that
                          of Orvieto et al., including the read-out: N(0, 1 / (number of complex features)).
initial state             Zero, between the two stable states: a unit that was never written is recognisable. With
                          ``start="branch"`` it is +alpha, a stable state, as the paper's derivation assumes.
hybrid                    d_state / 2 bistable and d_state / 2 complex linear units (the paper's division); their
                          read-outs are summed, each with its own matrix, because weight decay differs.
bidirectional             d_state units *per direction*, as in ``nn.GRU``; the features of both are concatenated.
batch norm                Over batch and time, valid steps only, momentum 0.1 and eps 1e-5 as in ``nn.BatchNorm1d``.
position encoding         Sinusoids with wavelengths geometric from 2.5 steps to 2T, times 4, concatenated to the
                          normalised input of layers that take positions (BMRU, the BMRU half of a hybrid). It must tell
                          single timesteps apart. Concatenated, not added, so that norm(x) keeps its scale. The count
                          restarts at a reset.
fully connected layers    ``fc2(gelu(fc1(x)))`` with H hidden units, the activation of the S4 family. Without a
                          nonlinearity the two layers would be one.
pooling                   Of their outputs. ``last`` computes the last block's read-out and the two layers at the last
                          valid timestep only, ``mean`` averages before ``fc2``, which is affine: the same, faster.
dropout                   On the output of each GLU; 0 by default, because the paper mentions none.
========================= =================================================================================
"""

from multistable.models.build import build_model
from multistable.models.config import LRUConfig, ModelConfig, PositionConfig
from multistable.models.sequence import ModelState, SequenceModel
from multistable.models.stack import Stack
from multistable.models.step_graph import StepGraph

__all__ = [
    "LRUConfig",
    "ModelConfig",
    "ModelState",
    "PositionConfig",
    "SequenceModel",
    "Stack",
    "StepGraph",
    "build_model",
]
