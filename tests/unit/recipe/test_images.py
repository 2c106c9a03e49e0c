"""Images: sizes and token counts, limits, quotas, and where downloads may go."""

import base64
import io
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import deepinfer_recipe as api
import pytest
from deepinfer_recipe.images import fit, num_tokens
from deepinfer_recipe.images.fetch import is_public_address
from deepinfer_recipe.images.sizes import shrink

pil_image = pytest.importorskip("PIL.Image", reason="Pillow is missing")


def picture(width, height, kind="PNG", **options):
    buffer = io.BytesIO()
    pil_image.new("RGB", (width, height), (200, 10, 10)).save(buffer, kind, **options)
    return buffer.getvalue()


def data_url(data, mime="image/png"):
    encoded = base64.b64encode(data).decode()
    return api.DataUrlImageSource(f"data:{mime};base64,{encoded}", path="messages.0")


def resolver(fetcher=None):
    fetcher = fetcher or api.ReqwestImageFetcher()
    return api.ImageResolver(fetcher, api.OpenCvImagePreprocessor())


def failure(*sources, fetcher=None, quota=None):
    with pytest.raises(api.ImageError) as caught:
        resolver(fetcher).resolve(sources, quota or api.ImageQuota())
    return caught.value.kind, caught.value.is_retryable, str(caught.value)


def test_sizes_equal_the_vectors(vectors):
    images = vectors("images")
    for record in images["preprocess"]:
        size = record["width"], record["height"]
        if record["detail"] == "low":
            size = shrink(*size, record["low_detail_max_dimension_px"])
        assert list(fit(*size)) == record["expected"], record
    for width, height, expected in images["token_count_w_h_n"]:
        assert num_tokens(width, height) == expected, (width, height)


def test_an_adjustment_counts_tokens_beyond_the_placeholders():
    images = [api.ImageInfo(b"x", 640, 480), api.ImageInfo(b"", 1, 1)]
    assert api.MultiModalData(images).image_token_adjustment() == 205 + 183
    assert api.MultiModalData().is_empty() and not api.MultiModalData(images).is_empty()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_images_are_told_by_their_bytes_and_become_webp(kind):
    quota = api.ImageQuota()
    data = picture(100, 50, kind)
    resolved = resolver().resolve([data_url(data), api.BytesImageSource(data)], quota)
    assert [(i.width, i.height) for i in resolved.images] == [fit(100, 50)] * 2
    assert all(i.data[:4] == b"RIFF" and i.data[8:12] == b"WEBP" for i in resolved.images)
    assert (quota.image_count(), quota.byte_size()) == (2, 2 * len(data))


def test_a_turned_photo_is_set_upright():
    exif = pil_image.Exif()
    exif[0x0112] = 6
    data = picture(400, 200, "JPEG", exif=exif)
    image = resolver().resolve([api.BytesImageSource(data)], api.ImageQuota()).images[0]
    assert image.height > image.width


UNUSABLE = (
    "You have uploaded an unsupported image. Please make sure your image is valid and has one of "
    "the following formats: webp, png, jpeg, and gif."
)


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (data_url(picture(9, 9, "BMP")), "UnsupportedMediaType"),
        (data_url(picture(9, 9), "image/bmp"), "UnsupportedMediaType"),
        (data_url(b""), "EmptyImage"),
        (api.DataUrlImageSource("zz", path="messages.0"), "InvalidDataUrl"),
        (api.DataUrlImageSource("data:image/png;base64,!", path="messages.0"), "InvalidDataUrl"),
        (data_url(picture(9000, 2)), "ImageDimensionsTooLarge"),
        (data_url(picture(100, 100)[:60]), "Decode"),
    ],
)
def test_unusable_images_say_where_they_are(source, kind):
    assert failure(source) == (kind, False, f"messages.0.image[0]: {UNUSABLE}")


def test_limits_of_count_bytes_and_urls():
    small = api.BytesImageSource(picture(20, 20), path="p")
    quota = api.ImageQuota()
    message = "p: Too many images: max 600 images per request, got 601"
    assert failure(*[small] * 601, quota=quota) == ("TooManyImages", False, message)
    assert (quota.image_count(), quota.byte_size()) == (0, 0)
    large = api.BytesImageSource(b"x" * ((32 << 20) + 1), path="p")
    assert failure(large)[0::2] == (
        "ImageTooLarge",
        "p.image[0]: image file size exceeds limit 32 MB",
    )
    padded = api.BytesImageSource(picture(20, 20) + bytes(22 << 20), path="p")
    assert failure(padded, padded, padded)[2] == (
        "p: Total image size exceeds the limit: max 64 MB per request, got 66 MB"
    )
    url = api.UrlImageSource("http://a/" + "b" * 8190, path="p")
    message = "p: external link length 8199 too long, max link length 8192"
    assert failure(url) == ("UrlTooLong", False, message)
    assert failure(api.UrlImageSource("ftp://a", path="p"))[2] == 'p: invalid url: "ftp://a"'


def test_limits_of_a_request_span_its_calls():
    quota = api.ImageQuota()
    resolver().resolve([api.BytesImageSource(picture(20, 20))] * 2, quota)
    message = "p: Too many images: max 600 images per request, got 601"
    small = api.BytesImageSource(picture(20, 20), path="p")
    assert failure(*[small] * 599, quota=quota)[2] == message
    padded = api.BytesImageSource(picture(20, 20) + bytes(31 << 20), path="p")
    resolver().resolve([padded], quota)
    resolver().resolve([padded], quota)
    message = "p: Total image size exceeds the limit: max 64 MB per request, got 93 MB"
    assert failure(padded, quota=quota) == ("TotalSizeTooLarge", False, message)
    assert quota.image_count() == 4


def test_limits_are_inclusive():
    url = "http://127.0.0.1/".ljust(8192, "b")
    assert failure(api.UrlImageSource(url))[0] == "DestinationRejected"
    assert failure(api.UrlImageSource(url + "b"))[0] == "UrlTooLong"
    resolver().resolve([api.BytesImageSource(picture(8192, 2))], api.ImageQuota())


class Site(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        path, _, hops = self.path.partition("?hops=")
        if hops:
            self.path = f"{path}?hops={int(hops) - 1}" if int(hops) > 1 else path
            self.send_response(302)
            self.send_header("Location", self.path)
            self.end_headers()
            return
        status, location = {"/404": (404, None), "/503": (503, None), "/loop": (302, "/loop"),
                            "/redirect": (302, "/ok"), "/file": (302, "file:///etc/passwd"),
                            "/inside": (302, "http://10.0.0.1/")}.get(
            self.path, (200, None))  # fmt: skip
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.end_headers()
        if self.path == "/ok":
            self.wfile.write(picture(20, 20))
        if self.path == "/big":
            self.wfile.write(bytes(2000))


@pytest.fixture(scope="module")
def site():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def only_local(host, address):
    return address.startswith("127.")


def test_private_addresses_are_refused_unless_a_filter_allows_them(site):
    kind, is_retryable, message = failure(api.UrlImageSource(site + "/ok", path="p"))
    assert (kind, is_retryable) == ("DestinationRejected", False)
    assert message == f"p.image[0]: Failed to download image from {site}/ok"
    fetcher = api.ReqwestImageFetcher().with_destination_filter(only_local)
    assert fetcher.fetch(site + "/redirect") == picture(20, 20)


def test_redirects_into_other_networks_are_refused(site):
    fetcher = api.ReqwestImageFetcher().with_destination_filter(only_local)
    assert (
        failure(api.UrlImageSource(site + "/inside"), fetcher=fetcher)[0] == "DestinationRejected"
    )
    assert failure(api.UrlImageSource(site + "/file"), fetcher=fetcher)[0] == "Fetch"
    assert failure(api.UrlImageSource(site + "/loop"), fetcher=fetcher)[:2] == ("Fetch", True)


def test_ten_redirects_are_followed_and_no_more(site):
    fetcher = api.ReqwestImageFetcher().with_destination_filter(only_local)
    assert fetcher.fetch(f"{site}/ok?hops=10") == picture(20, 20)
    assert failure(api.UrlImageSource(f"{site}/ok?hops=11"), fetcher=fetcher)[0] == "Fetch"


def test_the_connection_goes_to_the_address_that_was_checked(site, monkeypatch):
    """A name that resolves anew for the connection could lead elsewhere."""
    connected = []
    connect = socket.create_connection

    def spy(address, *arguments):
        connected.append(address[0])
        return connect(address, *arguments)

    monkeypatch.setattr(socket, "create_connection", spy)
    fetcher = api.ReqwestImageFetcher().with_destination_filter(only_local)
    url = site.replace("127.0.0.1", "localhost") + "/ok"
    assert fetcher.fetch(url) == picture(20, 20)
    assert connected == ["127.0.0.1"]


def test_failed_downloads_say_whether_to_retry(site):
    fetcher = api.ReqwestImageFetcher().with_destination_filter(only_local)
    for path, is_retryable in (("/404", False), ("/503", True)):
        source = api.UrlImageSource(site + path)
        assert failure(source, fetcher=fetcher)[:2] == ("FetchStatus", is_retryable)
    small = api.ReqwestImageFetcher.with_max_bytes(1000).with_destination_filter(only_local)
    assert failure(api.UrlImageSource(site + "/big"), fetcher=small)[0] == "ImageTooLarge"


@pytest.mark.parametrize("answer", [1, "yes", None, ZeroDivisionError])
def test_a_filter_that_answers_no_bool_refuses(site, answer):
    def odd(host, address):
        if isinstance(answer, type):
            raise answer
        return answer

    fetcher = api.ReqwestImageFetcher().with_destination_filter(odd)
    assert failure(api.UrlImageSource(site + "/ok"), fetcher=fetcher)[0] == "DestinationRejected"


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("8.8.8.8", True), ("127.0.0.1", False), ("10.1.2.3", False), ("169.254.169.254", False),
        ("192.168.0.1", False), ("0.0.0.0", False), ("224.0.0.1", False), ("100.64.0.1", False),
        ("::1", False), ("fe80::1%eth0", False), ("fd00::1", False), ("::ffff:10.0.0.1", False),
        ("2606:4700::1111", True), ("::ffff:8.8.8.8", True),
        # Ways to spell a private IPv4 address that gateways translate back.
        ("64:ff9b::10.0.0.1", False), ("64:ff9b::8.8.8.8", True), ("64:ff9b:1::10.0.0.1", False),
        ("2002:7f00:1::1", False), ("2002:808:808::1", True), ("::10.0.0.1", False),
        ("::ffff:0:10.0.0.1", False), ("fec0::1", False), ("ff0e::1", False),
    ],
)  # fmt: skip
def test_public_addresses(address, is_public):
    """Translated, tunneled and site-local addresses of private networks counted as public."""
    assert is_public_address("host", address) is is_public


@pytest.mark.parametrize(
    ("size", "fitted"),
    [
        ((9, 20), (364, 812)),
        ((120, 54), (812, 364)),
        ((35, 43), (490, 602)),
        ((19, 34), (406, 728)),
    ],
)
def test_a_size_that_rounding_holds_below_the_least_area_stays(size, fitted):
    """Such small images failed: scaling them once more never changed them."""
    assert fit(*size) == fitted


@pytest.mark.parametrize("size", [(1, 8192), (2, 8000), (8192, 1)])
def test_the_longest_strips_use_the_whole_budget(size):
    """One column of 511 tokens, or one row of 1021, each with its own ends."""
    assert num_tokens(*size) == 1024


def test_low_detail_shrinks_first():
    data = picture(1600, 800)
    for detail, size in (("low", (512, 256)), ("high", (1600, 800)), ("auto", (1600, 800))):
        source = api.BytesImageSource(data, detail)
        (image,) = resolver().resolve([source], api.ImageQuota()).images
        assert (image.width, image.height) == fit(*size)
    assert fit(512, 256) != fit(1600, 800)
