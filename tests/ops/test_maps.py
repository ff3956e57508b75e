"""Maps as words: packing is exact, and composition is associative and that of the maps."""

import pytest
import torch

from maps import STATES, map_inputs
from multistable.ops import maps as words


def three(K):
    return map_inputs(K, (3, 50, 4))["maps"].unbind(0)


@pytest.mark.parametrize("K", range(1, 17))
def test_unpack_inverts_pack(K):
    maps = map_inputs(K)["maps"]
    assert torch.equal(words.unpack(words.pack(maps), K), maps.long())


@pytest.mark.parametrize("K", STATES)
def test_words_compose_like_maps(K):
    first, then, _ = three(K)
    composed = words.compose(words.pack(first), words.pack(then), words.state_bits(K))
    assert torch.equal(words.unpack(composed, K), then.gather(-1, first.long()).long())


@pytest.mark.parametrize("K", STATES)
def test_composition_is_associative(K):
    a, b, c = (words.pack(x) for x in three(K))
    bits = words.state_bits(K)
    left = words.compose(words.compose(a, b, bits), c, bits)
    assert torch.equal(left, words.compose(a, words.compose(b, c, bits), bits))
    assert K == 1 or not torch.equal(left, words.compose(words.compose(b, a, bits), c, bits))


@pytest.mark.parametrize("K", STATES)
def test_a_constant_map_forgets(K):
    maps = three(K)[0]
    constant = words.constant(words.pack(maps), words.state_bits(K))
    assert torch.equal(words.unpack(constant, K), maps[..., :1].expand_as(maps).long())


@pytest.mark.parametrize(("K", "bytes_"), [(2, 1), (4, 1), (8, 4), (16, 8)])
def test_size_of_a_word(K, bytes_):
    assert words.pack(map_inputs(K)["maps"]).itemsize == bytes_
