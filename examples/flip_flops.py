"""Train a BMRU on three flip-flops and write it as a self-contained C file with two bytes of state.

Each of three inputs is noise with an occasional pulse of +1 or -1; each of three outputs is the sign of the last pulse
of its input. Eight units are trained on sequences of 100 timesteps. A unit needs two bits of state: its sign, and
whether it has been written (before that its state is 0). So the C program needs 2 bytes of memory besides its
constants. It is tested on a million timesteps: of seeds 0 to 9, eight gave no wrong answer out of 3,000,000; two gave
40 and 556.

    python examples/flip_flops.py [SEED]
"""

import ctypes
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from multistable import BMRU

BITS, UNITS = 3, 8

C = """\
/* y = c + R h,  h_n = sign(cand_n) alpha_n where |cand_n| >= |beta_n|, else as before;  cand, beta = W x + b */
#include <math.h>
#include <stdint.h>

enum {{ D = {D}, N = {N}, K = {K} }};
static const float W[2 * N][D] = {W};
static const float b[2 * N] = {b};
static const float alpha[N] = {alpha};
static const float R[K][N] = {R};
static const float c[K] = {c};

typedef struct {{ uint8_t written[(N + 7) / 8], positive[(N + 7) / 8]; }} State; /* starts as zeros */

static void step(State *state, const float x[D], float y[K])
{{
    for (int k = 0; k < K; k++) y[k] = c[k];
    for (int n = 0; n < N; n++) {{
        uint8_t *written = &state->written[n / 8], *positive = &state->positive[n / 8], bit = 1 << n % 8;
        float cand = b[n], beta = b[N + n];
        for (int d = 0; d < D; d++) {{
            cand += W[n][d] * x[d];
            beta += W[N + n][d] * x[d];
        }}
        if (fabsf(cand) >= fabsf(beta)) {{
            *written |= bit;
            *positive = cand >= 0 ? *positive | bit : *positive & ~bit;
        }}
        float h = !(*written & bit) ? 0 : *positive & bit ? alpha[n] : -alpha[n];
        for (int k = 0; k < K; k++) y[k] += R[k][n] * h;
    }}
}}

void run(State *state, const float *x, float *y, int64_t T)
{{
    for (int64_t t = 0; t < T; t++) step(state, x + t * D, y + t * K);
}}

int64_t bytes_of_state(void) {{ return sizeof(State); }}
"""


class FlipFlops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = BMRU(BITS, UNITS, batch_first=True, beta_bias=1.0, thresholds="paper")
        self.out = nn.Linear(UNITS, BITS)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0])


def sequences(B: int, T: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, ``[B, T, BITS]``: uniform noise in (-0.25, 0.25), plus a pulse at the first timestep and at
    one in 20 later ones."""
    pulse = torch.where(torch.rand(B, T, BITS) < 0.5, -1.0, 1.0)
    at = torch.rand(B, T, BITS) < 0.05
    at[:, 0] = True
    last = torch.where(at, torch.arange(T)[:, None], 0).cummax(1).values
    return pulse * at + 0.25 * (2 * torch.rand(B, T, BITS) - 1), pulse.gather(1, last)


def train(steps: int = 1000, seed: int = 0) -> FlipFlops:
    torch.manual_seed(seed)
    model = FlipFlops()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(steps):
        x, target = sequences(64, 100)
        loss = (model(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 250 == 249:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    return model


def to_c(model: nn.Module) -> str:
    """The C program of a model with a BMRU ``rnn`` of one layer and a linear ``out``, of any sizes.

    9 digits represent a float32 exactly. On a NaN it keeps its state, whereas PyTorch writes NaN.
    """
    rnn = model.rnn
    if rnn.num_layers > 1 or rnn.bidirectional or rnn.start != "zero" or not rnn.bias:
        raise ValueError(f"rnn must have one layer, one direction, start='zero' and a bias, got {rnn}")

    def constant(values: Tensor) -> str:
        if values.ndim > 1:
            return "{\n    " + ",\n    ".join(map(constant, values)) + "\n}"
        return "{" + ", ".join(f"{value:.9g}f" if value % 1 else f"{value:.1f}f" for value in values.tolist()) + "}"

    weight, bias, alpha = rnn.projection_of(0)  # the bias with the offsets of the thresholds
    arrays = {"W": weight, "b": bias, "alpha": alpha, "R": model.out.weight, "c": model.out.bias}
    sizes = {"D": weight.shape[1], "N": len(alpha), "K": len(model.out.bias)}
    return C.format(**sizes, **{name: constant(values.detach()) for name, values in arrays.items()})


def run_c(source: str, x: Tensor, outputs: int = BITS) -> tuple[Tensor, int, float]:
    """Compile and run the program on ``x [T, D]``. Return ``[T, outputs]``, bytes of state, seconds per step."""
    with tempfile.TemporaryDirectory() as folder:
        program, library = Path(folder, "flip_flops.c"), Path(folder, "flip_flops.so")
        program.write_text(source)
        subprocess.run(["cc", "-std=c99", "-O2", "-Wall", "-shared", "-fPIC", program, "-o", library], check=True)
        loaded = ctypes.CDLL(str(library))
        state = ctypes.create_string_buffer(loaded.bytes_of_state())
        x, y = x.contiguous(), torch.empty(len(x), outputs)
        start = time.perf_counter()
        loaded.run(state, ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_int64(len(x)))
        return y, len(state), (time.perf_counter() - start) / len(x)


@torch.no_grad()
def compare(model: FlipFlops, T: int) -> tuple[int, float, int, float]:
    """Run the C program for T timesteps. Return the number of wrong answers, the largest difference from PyTorch, bytes
    of state, seconds per timestep."""
    [x], [target] = sequences(1, T)
    y, size, seconds = run_c(to_c(model), x)
    return int((y.sign() != target).sum()), float((y - model(x[None])[0]).abs().max()), size, seconds


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors are small: more threads would only wait for each other
    trained = train(seed=int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    Path("flip_flops.c").write_text(to_c(trained))
    wrong, difference, size, seconds = compare(trained, 1_000_000)
    print(f"flip_flops.c, 1,000,000 timesteps: {wrong} wrong answers of 3,000,000, within {difference:.0e} of PyTorch")
    print(f"{size} bytes of state, {seconds * 1e9:.0f} ns per timestep")
