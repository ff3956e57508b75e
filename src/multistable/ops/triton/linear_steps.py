"""Device functions of the linear recurrence on a GPU (Triton): its arithmetic, real or complex, and how stretches join.

Real kernels pass the real part as the imaginary one, too; the compiler drops what is computed for it.
"""

import triton
import triton.language as tl

from multistable.ops.triton.primitives import everywhere_if, load, split_steps, store_numbers, unpack


@triton.jit
def _multiply(a_re, a_im, b_re, b_im, PAIRS: tl.constexpr):
    """The product of two numbers, complex if PAIRS."""
    if PAIRS:
        re, im = a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re
    else:
        re, im = a_re * b_re, a_im
    return re, im


@triton.jit
def _step(a_re, a_im, h_re, h_im, b_re, b_im, PAIRS: tl.constexpr):
    """``a h + b``, bracketed so that it becomes four multiply-adds if complex."""
    if PAIRS:
        re, im = a_re * h_re + (b_re - a_im * h_im), a_re * h_im + (a_im * h_re + b_im)
    else:
        re, im = a_re * h_re + b_re, a_im
    return re, im


@triton.jit
def _load(p, half, PAIRS: tl.constexpr, ACC: tl.constexpr, mask=None):
    """Real and imaginary parts; ``half`` lies between the two."""
    re = load(p, mask, 0.0, mask is not None).to(ACC)
    if PAIRS:
        return re, load(p + half, mask, 0.0, mask is not None).to(ACC)
    else:
        return re, re


@triton.jit
def _store(p, half, re, im, PAIRS: tl.constexpr, mask=None):
    tl.store(p, re, mask=mask)
    if PAIRS:
        tl.store(p + half, im, mask=mask)


@triton.jit
def _load_steps(p, half, mask, U: tl.constexpr, PAIRS: tl.constexpr, MASKED: tl.constexpr):
    """Words of real and imaginary parts, each a tuple of U steps."""
    re = split_steps(load(p, mask, 0, MASKED), U)
    if PAIRS:
        return re, split_steps(load(p + half, mask, 0, MASKED), U)
    else:
        return re, re


@triton.jit
def _unpack_steps(loaded, f: tl.constexpr, U: tl.constexpr, HALF: tl.constexpr, ACC: tl.constexpr):
    """The f-th number of each word, a tuple of U steps."""
    numbers = ()
    for u in tl.static_range(U):
        numbers += (unpack(loaded[u], f, HALF, ACC),)
    return numbers


@triton.jit
def _store_step(
    p, half, re, im, u: tl.constexpr, mask, HALF: tl.constexpr, PAIRS: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """Store step u of real and imaginary parts, each a tuple of U steps per number of a word."""
    store_numbers(p, re, u, mask, HALF, MASKED)
    if PAIRS:
        store_numbers(p + half, im, u, mask, HALF, MASKED)


@triton.jit
def _decay(c, ci, s, si, PAIRS: tl.constexpr):
    """What is left of a state ``s`` after a stretch with product ``c``. If that is zero nothing is left, not even of an
    infinity: so a reset, whose product is zero, ends an overflow."""
    re, im = _multiply(c, ci, s, si, PAIRS)
    shut = (c == 0) & (ci == 0) if PAIRS else c == 0
    return tl.where(shut, 0.0, re), tl.where(shut, 0.0, im)


@triton.jit
def _join_real(c, s, c_2, s_2):
    """Join ``(A, h)`` of two stretches: ``(A2 A1, A2 h1 + h2)``. Associative."""
    passed, _ = _decay(c_2, c_2, s, s, False)
    product, _ = _decay(c_2, c_2, c, c, False)
    return product, passed + s_2


@triton.jit
def _join_complex(c, ci, s, si, c_2, ci_2, s_2, si_2):
    """The same for complex numbers, each as real and imaginary part."""
    passed, passed_i = _decay(c_2, ci_2, s, si, True)
    product, product_i = _decay(c_2, ci_2, c, ci, True)
    return product, product_i, passed + s_2, passed_i + si_2


@triton.jit
def _append_real(bc, bs, c, s, bc_2, bs_2, c_2, s_2):
    """``_join`` that also keeps the result without the last stretch, so that a scan gives what comes *before* each."""
    b0, b1 = _join_real(c, s, bc_2, bs_2)
    a0, a1 = _join_real(c, s, c_2, s_2)
    return b0, b1, a0, a1


@triton.jit
def _append_complex(bc, bci, bs, bsi, c, ci, s, si, bc_2, bci_2, bs_2, bsi_2, c_2, ci_2, s_2, si_2):
    b0, b1, b2, b3 = _join_complex(c, ci, s, si, bc_2, bci_2, bs_2, bsi_2)
    a0, a1, a2, a3 = _join_complex(c, ci, s, si, c_2, ci_2, s_2, si_2)
    return b0, b1, b2, b3, a0, a1, a2, a3


@triton.jit
def _row_where(x, at):
    """One row [1, BN] of x [S, BN], where ``at [S, 1]`` is true."""
    return tl.sum(tl.where(at, x, 0.0), 0, keep_dims=True)


@triton.jit
def _advance(c, ci, s, si, state, state_i, PAIRS: tl.constexpr):
    """The state after a stretch with product ``c`` and end ``s``."""
    passed, passed_i = _decay(c, ci, state, state_i, PAIRS)
    return passed + s, passed_i + si


@triton.jit
def _prefixes(c, ci, s, si, S: tl.constexpr, PAIRS: tl.constexpr):
    """From the products and ends of all strands [S, BN], in the order of the recurrence: those of everything before
    each strand, and those of all together [1, BN]."""
    one, zero = tl.full(s.shape, 1.0, s.dtype), tl.zeros_like(s)
    if S == 1:
        bc, bci, bs, bsi = one, zero, zero, zero
    else:
        final = (tl.arange(0, S) == S - 1)[:, None]
        if PAIRS:
            bc, bci, bs, bsi, c, ci, s, si = tl.associative_scan(
                (one, zero, zero, zero, c, ci, s, si), 0, _append_complex
            )
        else:
            bc, bs, c, s = tl.associative_scan((one, zero, c, s), 0, _append_real)
            bci, bsi, ci, si = bc, zero, c, zero
        c, ci, s, si = _row_where(c, final), _row_where(ci, final), _row_where(s, final), _row_where(si, final)
    return bc, bci, bs, bsi, c, ci, s, si


@triton.jit
def _repeat(coefficient, U: tl.constexpr):
    """Real and imaginary part of one coefficient, each as a tuple of U steps."""
    ars, ais = (), ()
    for _ in tl.static_range(U):
        ars += (coefficient[0],)
        ais += (coefficient[1],)
    return ars, ais


@triton.jit
def _load_opens(reset, r_t, strands, end, U: tl.constexpr, MASKED: tl.constexpr):
    """True where there is no reset: U steps [S, 1]."""
    opens = ()
    if reset is not None:
        for u in tl.static_range(U):
            p = reset + (strands + u).to(tl.int64) * r_t
            opens += (load(p, strands + u < end, 0, MASKED) == 0,)
    return opens


@triton.jit
def _coefficients(a, N, PER_WORD: tl.constexpr, CONSTANT: tl.constexpr, PAIRS: tl.constexpr, ACC: tl.constexpr):
    """Constant coefficients, from pointers to a word's first number: a pair per number. Zeros if they are not."""
    found = ()
    for f in tl.static_range(PER_WORD):
        if CONSTANT:
            found += (_load(a + f, N * PER_WORD, PAIRS, ACC),)
        else:
            found += ((tl.zeros(a.shape, ACC), tl.zeros(a.shape, ACC)),)
    return found


@triton.jit
def _entering(start, entered, N, PER_WORD: tl.constexpr, PAIRS: tl.constexpr, ACC: tl.constexpr):
    """What enters a chunk, from pointers to a word's first number, zeros unless ``entered``: a pair per number."""
    mask = everywhere_if(entered, start)
    found = ()
    for f in tl.static_range(PER_WORD):
        found += (_load(start + f, N * PER_WORD, PAIRS, ACC, mask),)
    return found
