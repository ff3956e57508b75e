"""The lines of docs/speed.md that a user on a CPU waits for, small enough that both of two commits take a few minutes.

One thread: with two, on a machine that others use, times vary by a factor of thirty. A class whose layer an older
commit does not have is skipped there.
"""

import torch

BATCH, LONG = (8, 512, 128), (1, 32768, 128)


class Threads:
    timeout = 120.0
    rounds = 4  # of two processes each, in turns with the other commit

    def setup(self, *_: object) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)


class Scans(Threads):
    """``bmru_scan`` and its backward."""

    params = ([BATCH, LONG],)
    param_names = ("shape",)

    def setup(self, shape: tuple[int, int, int]) -> None:
        from multistable import ops

        super().setup()
        self.scan, self.alpha = ops.bmru_scan, torch.ones(shape[2])
        self.cand, self.beta = (torch.randn(shape).requires_grad_() for _ in range(2))
        self.time_forward(shape)  # numba compiles at the first call
        self.time_forward_and_backward(shape)

    def time_forward(self, shape: tuple[int, int, int]) -> None:
        with torch.no_grad():
            self.scan(self.cand, self.beta, self.alpha)

    def time_forward_and_backward(self, shape: tuple[int, int, int]) -> None:
        self.scan(self.cand, self.beta, self.alpha).sum().backward()


class Layers(Threads):
    """A layer with its projection."""

    params = (("BMRU", "LRU", "MinGRU", "Hybrid", "HysteresisMRU", "Stack"), (BATCH, LONG))
    param_names = ("layer", "shape")

    def setup(self, layer: str, shape: tuple[int, int, int]) -> None:
        import multistable

        super().setup()
        if not hasattr(multistable, layer) or (layer == "HysteresisMRU" and shape == LONG):
            raise NotImplementedError  # asv skips it; the exact unit would take a second
        kind, (B, T, N) = getattr(multistable, layer), shape
        names = ("hybrid",) if layer == "Stack" else ()
        self.rnn = kind(*names, N, N, batch_first=True)
        self.x = torch.randn(B, T, N)
        self.time_forward(layer, shape)
        self.time_training_step(layer, shape)

    def time_forward(self, layer: str, shape: tuple[int, int, int]) -> None:
        with torch.no_grad():
            self.rnn(self.x)

    def time_training_step(self, layer: str, shape: tuple[int, int, int]) -> None:
        self.rnn(self.x)[0].sum().backward()


class Steps(Threads):
    """One timestep of one sequence: what streaming waits for."""

    def setup(self) -> None:
        from multistable import BMRU

        super().setup()
        self.rnn, self.x = BMRU(256, 256), torch.randn(1, 256)
        self.state = torch.zeros(1, 1, 256)
        self.time_bmru()

    def time_bmru(self) -> None:
        with torch.no_grad():
            self.rnn.step(self.x, self.state)


class Import:
    """In a new process."""

    timeout = 120.0

    def timeraw_import(self) -> str:
        return "import multistable"
