"""Images, audio and files: their digests and what stands for them."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.errors import RequestError
from whippletree.gateway.dialects.media import from_address, from_base64, kind_of, placeholder


@given(st.binary(max_size=40))
def test_the_same_bytes_have_one_digest_however_they_come(content):
    plain = base64.b64encode(content).decode()
    forms = [
        from_base64(plain, "image/png", "x"),
        from_base64(base64.urlsafe_b64encode(content).decode().rstrip("="), "image/png", "x"),
        from_address(f"data:image/png;base64,{plain}", "", "x"),
        from_address(f"data:image/png;charset=x;base64,{plain}", "image/jpeg", "x"),
    ]
    assert len({media.digest for media in forms}) == 1
    assert {(media.kind, media.media_type) for media in forms} == {("image", "image/png")}


def test_other_bytes_and_other_addresses_have_other_digests():
    made = [from_base64(text, "", "x") for text in ("AAAA", "AAAB")]
    made += [from_address(address, "", "x") for address in ("https://a/1", "https://a/2", "data:,1", "data:,2")]
    assert len({media.digest for media in made}) == len(made)


@pytest.mark.parametrize("data", ["%%", "A", "é", "AA=A"])
def test_what_is_no_base64_is_refused_by_its_place(data):
    with pytest.raises(RequestError, match=r"messages\[3\] is not base64") as error:
        from_base64(data, "image/png", "messages[3]")
    assert error.value.status == 400


@pytest.mark.parametrize(
    ("media_type", "kind"),
    [("image/png", "image"), ("audio/wav", "audio"), ("video/mp4", "file"), ("", "file"), ("text", "file")],
)
def test_kinds(media_type, kind):
    assert kind_of(media_type) == kind


def test_a_placeholder_names_kind_and_type():
    assert placeholder(from_address("https://x/y", "", "x", "image")) == "[image image/*]"
    assert placeholder(from_address("https://x/y", "application/pdf", "x")) == "[file application/pdf]"
    assert placeholder(from_base64("AAAA", "", "x")) == "[file application/octet-stream]"
