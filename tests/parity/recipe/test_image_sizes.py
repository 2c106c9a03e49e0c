"""Random image sizes: the tokens that an image costs equal the oracle's."""

import random


def draw(seed):
    rng = random.Random(seed)

    def side():
        return rng.choice([rng.randrange(1, 64), rng.randrange(1, 2000), rng.randrange(1, 8193)])

    return [(side(), side()) for _ in range(rng.choice([1, 1, 2, 5]))]


def run(side, sizes):
    images = [side.api.ImageInfo(b"", width, height) for width, height in sizes]
    try:
        return side.api.MultiModalData(images).image_token_adjustment()
    except side.api.CalcResizeError as error:
        return str(error)


def test_images_cost_as_many_tokens_as_in_the_oracle(agree, seeds):
    agree(seeds, draw, run)
