"""Keys: minting, checking, and the secret they come from."""

import stat
import threading

import pytest
from gateway_world import SECRET
from hypothesis import given
from hypothesis import strategies as st

from whippletree.errors import ConfigurationError, RequestError
from whippletree.gateway.keys import control_key, is_control_key, load_secret, mint, verify


@given(st.text(st.characters(exclude_categories=("Cs",))), st.integers(1, 10**6))
def test_a_minted_key_reads_back(rollout_id, attempt):
    said = verify(SECRET, mint(SECRET, rollout_id, attempt))
    assert (said.rollout_id, said.attempt) == (rollout_id, attempt)


@given(st.data())
def test_a_key_with_any_character_changed_is_refused_without_being_shown(data):
    key = mint(SECRET, "s0003-g02-m5", 2)
    place = data.draw(st.integers(0, len(key) - 2))  # the last character holds unused bits of the encoding
    other = data.draw(st.sampled_from("aZ09-_.").filter(lambda character: character != key[place]))
    changed = key[:place] + other + key[place + 1 :]
    with pytest.raises(RequestError) as refusal:
        verify(SECRET, changed)
    assert refusal.value.status == 401
    assert changed not in str(refusal.value)
    assert key.partition(".")[2] not in str(refusal.value)


def test_the_refusal_names_the_rollout_when_it_can_be_read():
    with pytest.raises(RequestError, match=r"'s7', attempt 3 was not signed by this run"):
        verify(SECRET, mint(b"x" * 32, "s7", 3))


@pytest.mark.parametrize(
    ("key", "says"), [("", "no key"), ("sk-123", "not a key of this gateway"), ("wt-%%%.x", "damaged"), ("wt-e30.x", "damaged")]
)
def test_what_is_no_key_is_refused_by_name(key, says):
    with pytest.raises(RequestError, match=says):
        verify(SECRET, key)


def test_the_control_key_is_no_attempts_key_and_the_reverse():
    assert is_control_key(SECRET, control_key(SECRET))
    assert not is_control_key(SECRET, mint(SECRET, "s0", 1))
    assert not is_control_key(SECRET, "\udcff")
    with pytest.raises(RequestError):
        verify(SECRET, control_key(SECRET))


def test_the_secret_is_made_once_and_only_its_owner_reads_it(tmp_path):
    path = tmp_path / "run" / "gateway.secret"
    found = []
    threads = [threading.Thread(target=lambda: found.append(load_secret(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [item.name for item in path.parent.iterdir()] == ["gateway.secret"]


def test_a_damaged_secret_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "gateway.secret"
    path.write_text("short")
    with pytest.raises(ConfigurationError, match=r"gateway\.secret"):
        load_secret(path)
