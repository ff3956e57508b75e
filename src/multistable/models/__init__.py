"""Models: a list of cell names becomes a network, ``build_model(ModelConfig(cells=("lru", "lru", "bmru"), ...))``.

What the paper leaves open, and how it is decided here:

========================= =================================================================================
order within a block      ``x + GLU(out_proj(cell(norm(x))))``, norm first, as in S4 and LRU, which the paper follows.
read-out                  A matrix without bias: the GLU's linear map follows at once and has one. It belongs to the
                          block, not to the cell, so that a cell's features can be read by something else.
GLU                       A linear map from H to 2H, then ``a * sigmoid(b)``: without the map half of H would be lost.
skip                      ``skip * norm(x)`` with ``skip ~ N(0, 1)`` where a part of the cell is an LRU (its ``D``). The
                          BMRU's equations have none.
initialisation            Linear maps between the cells: variance 1 / (number of inputs), or ``nn.Linear``'s, a third of
                          it (``initial``). BMRU: ``nn.Linear``'s, alpha = 1, and ``beta_bias``; with positions each
                          unit starts with a timestep of its own (``PositionConfig.tuning``). LRU: that of Orvieto et
                          al., read-out included: N(0, 1 / (number of complex features)).
initial state             Zero, between the two stable states: a unit that was never written says so.
hybrid                    d_state / 2 bistable and d_state / 2 complex linear units (the paper's division); read-outs
                          are summed, each part with a matrix of its own, because weight decay differs.
bidirectional             d_state units *per direction*, as in ``nn.GRU``: the features are those of both, and a
                          comparison at equal units per direction needs no rounding.
batch norm                Over batch and time, valid steps only, momentum 0.1 and eps 1e-5 as in ``nn.BatchNorm1d``.
position encoding         Sinusoids with wavelengths geometric from 2.5 steps to 2T, times 4, concatenated to the
                          normalised input of cells that take positions (BMRU, the BMRU half of a hybrid). Ten points of
                          accuracy on permuted MNIST come from it: it has to tell single timesteps apart.
                          Concatenated, not added, so that norm(x) keeps its scale. The count starts again at a reset.
fully connected layers    ``fc2(gelu(fc1(x)))`` with H hidden units: the width at hand, and the activation of the S4
                          family. Without a nonlinearity two layers would be one.
pooling                   Of their outputs. ``last`` computes the last block's read-out and the two layers at the last
                          valid timestep only, ``mean`` averages before ``fc2``, which is affine: the same, faster.
dropout                   One, on the output of each GLU; 0 by default, because the paper names none.
========================= =================================================================================
"""

from multistable.models.build import build_model
from multistable.models.config import LRUConfig, ModelConfig, PositionConfig
from multistable.models.sequence import ModelState, SequenceModel

__all__ = ["LRUConfig", "ModelConfig", "ModelState", "PositionConfig", "SequenceModel", "build_model"]
