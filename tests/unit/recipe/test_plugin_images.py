"""Images of a chat reach the engine as pixels."""

import base64
import io

import pytest
from deepinfer_core.plugin_api import ReadsImages
from deepinfer_recipe import ImageError
from deepinfer_recipe.images import fit, num_tokens
from deepinfer_recipe.plugin import EngineRecipe

pil_image = pytest.importorskip("PIL.Image", reason="Pillow is missing")


@pytest.fixture(scope="module")
def recipe(tokenizer_json):
    return EngineRecipe("DeepseekV41ForCausalLM", tokenizer_json)


def png(width, height, color=(200, 10, 60), mode="RGB"):
    buffer = io.BytesIO()
    pil_image.new(mode, (width, height), color).save(buffer, "PNG")
    return buffer.getvalue()


def part(data, **image):
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url, **image}}


def chat(*parts):
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, *parts]}]}


def test_each_image_has_its_token_and_its_pixels(recipe, tokenizer):
    encoded = recipe.encode(chat(part(png(100, 50)), part(png(1400, 700, (1, 2, 3)))))
    image_id = tokenizer.added_id("<｜image｜>")
    assert encoded.token_ids.count(image_id) == len(encoded.images) == 2
    for image, size, color in zip(
        encoded.images, ((100, 50), (1400, 700)), ((200, 10, 60), (1, 2, 3)), strict=True
    ):
        assert (image.width, image.height) == fit(*size)
        assert image.pixels == bytes(color) * (image.width * image.height)
    assert recipe.parser(encoded).feed([]) == []


def test_low_detail_has_fewer_pixels(recipe):
    full, low = recipe.encode(chat(part(png(1400, 700)), part(png(1400, 700), detail="low"))).images
    assert num_tokens(low.width, low.height) < num_tokens(full.width, full.height)


def test_what_is_transparent_is_black(recipe):
    """As in an image that was resized with its transparency, which is dropped then."""
    (image,) = recipe.encode(chat(part(png(60, 60, (9, 8, 7, 0), "RGBA")))).images
    assert set(image.pixels) == {0}


def test_text_alone_has_no_images(recipe):
    assert recipe.encode(chat()).images == []


def test_an_unusable_image_says_where_it_is(recipe):
    with pytest.raises(ImageError, match=r"messages\[0\]\.image\[1\]: You have uploaded an unsup"):
        recipe.encode(chat(part(png(60, 60)), part(b"no image")))


def test_images_come_without_a_chat_too(recipe):
    assert isinstance(recipe, ReadsImages)
    data = png(60, 60)
    image = recipe.read_image(data)
    assert (image.width, image.height) == fit(60, 60)
    url = part(data)["image_url"]["url"]
    assert recipe.read_image(url) == image
    with pytest.raises(ImageError, match="You have uploaded an unsupported image"):
        recipe.read_image(b"no image")
