"""Cut one sequence along time over the ranks of a process group: loss and gradients equal those of a single process.

torchrun --standalone --nproc-per-node 2 examples/cut_sequence.py
"""

import torch
import torch.distributed as dist

from multistable import Stack
from multistable.distributed import cut, sequence_parallel, sum_gradients


def train(rnn: Stack, whole: torch.Tensor) -> torch.Tensor:
    """Compute the loss, the mean square of the first feature of all outputs, and its gradients."""
    x, _ = cut(whole)  # this rank's steps: [4, 500, 8] on one, [4, 501, 8] on the other
    with sequence_parallel() as pieces:
        output, _ = rnn(x)  # the outputs of this piece; the second result is the last state of the whole sequence
        loss = output[..., 0].square().sum() / whole[..., 0].numel()  # this rank's part of the loss
        loss.backward()
    sum_gradients(rnn)  # now every rank has the gradients of the whole loss
    print(f"rank {pieces.rank}: output {list(output.shape)}, {pieces.exchange.bytes_sent} bytes sent")
    dist.all_reduce(loss.detach_())
    return loss


def main() -> None:
    dist.init_process_group("gloo")  # "nccl" on GPUs
    torch.manual_seed(0)  # the same weights and the same sequence on every rank
    rnn, alone = (Stack("hybrid", 8, 64, num_layers=2, batch_first=True) for _ in range(2))
    alone.load_state_dict(rnn.state_dict())
    whole = torch.randn(4, 1001, 8)
    loss = train(rnn, whole)

    expected = alone(whole)[0][..., 0].square().mean()
    expected.backward()
    grads = [torch.cat([x.grad.flatten() for x in model.parameters() if x.grad is not None]) for model in (rnn, alone)]
    error = (grads[0] - grads[1]).norm() / grads[1].norm()
    if dist.get_rank() == 0:
        off = abs(loss.item() / expected.item() - 1)
        print(f"loss and gradients differ from those of one process by {off:.0e} and {error:.0e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
