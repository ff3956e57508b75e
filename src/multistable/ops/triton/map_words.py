"""Device functions on words of maps on a GPU (Triton): look a state up, compose maps, join stretches of time.

Maps of up to 4 states are bytes, and four neighbouring ones are read as one word. Their states are four bytes of a word
too, and a look-up selects halves of all four maps by one bit of the states after the other. In a single map, a byte or
a word of 32 or 64 bits (up to 8 or 16 states), a look-up is a shift.

``BITS`` are those of a state, and ``ONES`` has the lowest bit of each map of a word.
"""

import triton
import triton.language as tl


@triton.jit
def _look_up(word, state, BITS: tl.constexpr, ONES: tl.constexpr):
    """``map[state]`` for each map of a word."""
    if ONES != 1:
        for i in tl.static_range(BITS):
            upper = ((state >> (BITS - 1 - i)) & ONES) * 255
            word = word ^ ((word ^ (word >> (BITS << (BITS - 1 - i)))) & upper)  # half of what is left of the map
        return word & (ONES * ((1 << BITS) - 1))
    else:
        return (word >> (state * BITS)) & ((1 << BITS) - 1)


@triton.jit
def _compose(first, then, BITS: tl.constexpr, ONES: tl.constexpr):
    """Maps ``k -> then[first[k]]``. Associative.

    Of bytes, all places are looked up at once: each entry of ``then`` is copied to all places of its map, and the bits
    of ``first`` choose among them (6 and 19 instructions for 2 and 4 states, 18 and 52 one place after the other).
    """
    if BITS == 1:
        return _choose(first, _everywhere(then, 0, 1, ONES), _everywhere(then, 1, 1, ONES))
    elif BITS == 2:
        lower, upper = (first & (ONES * 0x55)) * 3, ((first >> 1) & (ONES * 0x55)) * 3
        even = _choose(upper, _everywhere(then, 0, 2, ONES), _everywhere(then, 2, 2, ONES))
        odd = _choose(upper, _everywhere(then, 1, 2, ONES), _everywhere(then, 3, 2, ONES))
        return _choose(lower, even, odd)
    else:
        result = tl.zeros_like(first)
        for k in tl.static_range(1 << BITS):
            middle = (first >> (BITS * k)) & (ONES * ((1 << BITS) - 1))
            result |= _look_up(then, middle, BITS, ONES) << (BITS * k)
        return result


@triton.jit
def _everywhere(word, k: tl.constexpr, BITS: tl.constexpr, ONES: tl.constexpr):
    """Each map's entry k in all its places."""
    return ((word >> (BITS * k)) & (ONES * ((1 << BITS) - 1))) * (3 if BITS == 1 else 0x55)


@triton.jit
def _choose(mask, zero, one):
    """The bits of ``one`` where the mask has a 1, else those of ``zero``."""
    return zero ^ ((zero ^ one) & mask)


@triton.jit
def _constant(word, BITS: tl.constexpr, ONES: tl.constexpr, PLACES: tl.constexpr):
    """The map ``k -> map[0]`` of a step whose state before was reset; ``PLACES`` has a 1 in each place of a map."""
    return (word & (ONES * ((1 << BITS) - 1))) * PLACES


@triton.jit
def _append(before, word, before_2, word_2, BITS: tl.constexpr, ONES: tl.constexpr):
    """Join two stretches of time, and also without the last step, so that a scan gives what comes *before* each."""
    return _compose(word, before_2, BITS, ONES), _compose(word, word_2, BITS, ONES)


@triton.jit
def _append_1(before, word, before_2, word_2):
    return _append(before, word, before_2, word_2, 1, 1)


@triton.jit
def _append_1x4(before, word, before_2, word_2):
    return _append(before, word, before_2, word_2, 1, 0x01010101)


@triton.jit
def _append_2(before, word, before_2, word_2):
    return _append(before, word, before_2, word_2, 2, 1)


@triton.jit
def _append_2x4(before, word, before_2, word_2):
    return _append(before, word, before_2, word_2, 2, 0x01010101)


@triton.jit
def _append_3(before, word, before_2, word_2):
    return _append(before, word, before_2, word_2, 3, 1)


@triton.jit
def _append_4(before, word, before_2, word_2):
    return _append(before, word, before_2, word_2, 4, 1)


@triton.jit
def _prefixes(word, BITS: tl.constexpr, ONES: tl.constexpr, IDENTITY: tl.constexpr):
    """The maps of the rows before each row of ``word [R, BN]``, without it and with it. The operator of a scan takes no
    constants, hence six of them."""
    nothing = tl.full(word.shape, IDENTITY, word.dtype)
    if BITS == 1 and ONES == 1:
        return tl.associative_scan((nothing, word), 0, _append_1)
    elif BITS == 1:
        return tl.associative_scan((nothing, word), 0, _append_1x4)
    elif BITS == 2 and ONES == 1:
        return tl.associative_scan((nothing, word), 0, _append_2)
    elif BITS == 2:
        return tl.associative_scan((nothing, word), 0, _append_2x4)
    elif BITS == 3:
        return tl.associative_scan((nothing, word), 0, _append_3)
    else:
        return tl.associative_scan((nothing, word), 0, _append_4)


@triton.jit
def _word_pointer(p, PER_WORD: tl.constexpr):
    """Cast a pointer to maps or states to one to words: unsigned, four bytes in one if PER_WORD is 4."""
    if PER_WORD == 4:
        return p.to(tl.pointer_type(tl.uint32))
    elif p.dtype.element_ty.primitive_bitwidth == 64:
        return p.to(tl.pointer_type(tl.uint64))
    elif p.dtype.element_ty.primitive_bitwidth == 32:
        return p.to(tl.pointer_type(tl.uint32))
    else:
        return p
