"""Rounds rows into the order of tiles in Triton's interpreter; fails where core says otherwise.

TRITON_INTERPRET=1 python round_slots.py
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import eight_bits
from deepinfer_core.ops.reference.quant import act
from deepinfer_cuda.kernels.expert_tiles import lay_out
from deepinfer_cuda.kernels.quant import round_slots, round_tiles

ROWS = 4
TOKENS, EXPERTS, TOP_K, SIZE = 9, 5, 2, 200


def main():
    eight_bits.round_as_devices_do()
    torch.manual_seed(0)
    for local in (None, [2, -1, 0, 1, -1]):
        ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(TOKENS)]).int()
        expert_map = None if local is None else torch.tensor(local, dtype=torch.int32)
        num_local = EXPERTS if local is None else 3
        tiles = lay_out(ids, expert_map, num_local, ROWS, wants_places=True)
        check(tiles, ids, list(range(EXPERTS)) if local is None else local)
    print("right")


def check(tiles, ids, local):
    count = int(tiles.count[0])
    x = torch.randn(TOKENS, 2 * SIZE)[:, ::2]
    q, scales = round_slots(x, tiles, ROWS, TOP_K)
    rounded, row_scales = act(x, "fp8_block128")
    assert q.shape == (tiles.bound * ROWS, SIZE)
    seen = set()
    for slot, expert in enumerate(ids.flatten().tolist()):
        place = int(tiles.places[slot])
        if local[expert] < 0:
            assert place == -1
            continue
        tile, row = divmod(place, ROWS)
        assert tile < count and row < tiles.sizes[tile]
        assert tiles.experts[tile] == local[expert] and tiles.slots[place] == slot
        token = slot // TOP_K
        assert torch.equal(q[place].view(torch.uint8), rounded[token].view(torch.uint8))
        torch.testing.assert_close(scales[:, place], row_scales[token], rtol=0, atol=0)
        seen.add(place)
    assert int(tiles.sizes[:count].sum()) == len(seen)
    in_order = torch.randn(tiles.bound * ROWS, SIZE)
    q, scales = round_tiles(in_order, tiles, ROWS)
    rounded, row_scales = act(in_order, "fp8_block128")
    for place in seen:
        assert torch.equal(q[place].view(torch.uint8), rounded[place].view(torch.uint8))
        torch.testing.assert_close(scales[:, place], row_scales[place], rtol=0, atol=0)


if __name__ == "__main__":
    main()
