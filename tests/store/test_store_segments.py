from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.errors import StoreError
from whippletree.store.segments import SegmentPayloadStore, decode_record, encode_record
from whippletree.types import CallPayload, PayloadKey


def equal(one: CallPayload, other: CallPayload) -> bool:
    columns = ("prompt_delta", "sampled_ids", "logprobs")
    same = all(
        np.array_equal(getattr(one, name), getattr(other, name)) and getattr(one, name).dtype == getattr(other, name).dtype
        for name in columns
    )
    texts = ("request_json", "messages_json", "reply_json", "lineage", "experts")
    return same and all(getattr(one, name) == getattr(other, name) for name in texts)


@settings(max_examples=50, deadline=None)
@given(
    prompt=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20),
    sampled=st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(width=32, allow_nan=False)), max_size=20),
    request_json=st.binary(max_size=30),
    reply_json=st.binary(max_size=30),
)
def test_any_payload_comes_back_as_it_was(
    prompt: list[int], sampled: list[tuple[int, float]], request_json: bytes, reply_json: bytes
) -> None:
    written = CallPayload(
        prompt_delta=np.array(prompt, dtype=np.int32),
        sampled_ids=np.array([token for token, _ in sampled], dtype=np.int32),
        logprobs=np.array([logprob for _, logprob in sampled], dtype=np.float32),
        request_json=request_json,
        reply_json=reply_json,
    )
    assert equal(decode_record(encode_record(written)), written)


def test_keys_lead_to_their_own_payloads_also_from_another_instance(tmp_path: Path, make: Any) -> None:
    writer = SegmentPayloadStore(tmp_path, instance="gateway-0")
    written = [make.payload(prompt=count, sampled=count + 1) for count in range(5)]
    keys = writer.put(written[:2]) + writer.put(written[2:])
    assert len({key.segment for key in keys}) == 1
    assert keys[0].segment.startswith("gateway-0-")
    reader = SegmentPayloadStore(tmp_path)
    assert all(equal(reader.get(key), payload) for key, payload in zip(keys, written, strict=True))


def test_segments_roll_at_their_size(tmp_path: Path, make: Any) -> None:
    size = len(encode_record(make.payload()))
    payloads = SegmentPayloadStore(tmp_path, segment_bytes=2 * size)
    keys = payloads.put([make.payload() for _ in range(5)])
    assert [key.offset for key in keys] == [0, size, 0, size, 0]
    assert len({key.segment for key in keys}) == 3
    assert all(equal(payloads.get(key), make.payload()) for key in keys)


def test_one_fsync_per_put(tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = SegmentPayloadStore(tmp_path)
    payloads.put([make.payload()])
    synced: list[int] = []
    original = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (synced.append(os.fstat(file).st_size), original(file))[1])
    keys = payloads.put([make.payload() for _ in range(10)])
    assert synced == [keys[-1].offset + keys[-1].length]  # once, after everything was written


def test_a_torn_tail_harms_no_record_before_it(tmp_path: Path, make: Any) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; import numpy as np\n"
        "from whippletree.store.segments import SegmentPayloadStore, encode_record\n"
        "from whippletree.types import CallPayload\n"
        "store = SegmentPayloadStore(Path(sys.argv[1]), instance='victim')\n"
        "payload = CallPayload(prompt_delta=np.arange(3, dtype=np.int32), sampled_ids=np.arange(100, 102, dtype=np.int32),\n"
        "    logprobs=np.linspace(-1.5, -0.1, 2, dtype=np.float32),\n"
        "    request_json=b'{\"messages\": []}', reply_json=b'{\"choices\": []}')\n"
        "key = store.put([payload])[0]\n"
        "print(key.segment, key.offset, key.length, flush=True)\n"
        "with open(Path(sys.argv[1]) / f'{key.segment}.seg', 'ab') as file: file.write(encode_record(payload)[:20])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    segment, offset, length = done.stdout.split()
    key = PayloadKey(segment=segment, offset=int(offset), length=int(length))
    payloads = SegmentPayloadStore(tmp_path)
    assert equal(payloads.get(key), make.payload())
    with pytest.raises(StoreError, match="damaged"):
        payloads.get(PayloadKey(segment=segment, offset=key.offset + key.length, length=key.length))


@pytest.mark.parametrize("position", [0, 4, 9, 20, -1])
def test_a_damaged_byte_is_an_error_that_names_segment_and_offset(tmp_path: Path, make: Any, position: int) -> None:
    payloads = SegmentPayloadStore(tmp_path)
    first, second = payloads.put([make.payload(), make.payload()])
    path = tmp_path / f"{second.segment}.seg"
    data = bytearray(path.read_bytes())
    place = second.offset + (position if position >= 0 else second.length - 1)
    data[place] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(StoreError, match=f"{second.segment}:{second.offset}.*damaged"):
        payloads.get(second)
    assert equal(payloads.get(first), make.payload())


def test_a_truncated_or_missing_record_is_an_error(tmp_path: Path, make: Any) -> None:
    payloads = SegmentPayloadStore(tmp_path)
    key = payloads.put([make.payload()])[0]
    path = tmp_path / f"{key.segment}.seg"
    os.truncate(path, key.length - 1)
    with pytest.raises(StoreError, match="bytes are there"):
        payloads.get(key)
    path.unlink()
    with pytest.raises(StoreError, match="gone"):
        payloads.get(key)


@pytest.mark.parametrize("name", ["../secret", "a/b", "", ".hidden", "a\0b"])
def test_a_name_that_is_no_plain_file_name_is_refused(tmp_path: Path, name: str) -> None:
    payloads = SegmentPayloadStore(tmp_path / "payloads")
    (tmp_path / "secret.seg").write_bytes(b"x" * 100)
    with pytest.raises(StoreError, match="not the name"):
        payloads.get(PayloadKey(segment=name, offset=0, length=10))
    with pytest.raises(StoreError, match="not the name"):
        payloads.remove([name])
    assert (tmp_path / "secret.seg").exists()


def test_an_instance_name_that_is_no_plain_file_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="file name"):
        SegmentPayloadStore(tmp_path, instance="../x")


def test_a_segment_in_use_is_not_removed(tmp_path: Path, make: Any) -> None:
    size = len(encode_record(make.payload()))
    writer, other = SegmentPayloadStore(tmp_path, segment_bytes=size), SegmentPayloadStore(tmp_path)
    first = writer.put([make.payload()])[0].segment
    assert other.remove([first]) == []  # being written
    assert other.segments() == []
    second = writer.put([make.payload()])[0].segment
    assert first != second
    assert other.remove([first]) == []  # full, but its records' metadata may not be committed yet
    writer.put([make.payload()])
    assert other.remove([first, second]) == [first]
    assert other.remove([first]) == [first]  # gone already
    assert other.segments() == []
    writer.close()
    assert second in other.segments()
    assert other.remove([second]) == [second]


def test_after_a_failed_write_a_new_segment_is_begun(tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = SegmentPayloadStore(tmp_path)
    before = payloads.put([make.payload()])[0]

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(StoreError, match="No space left"):
            payloads.put([make.payload()])
    after = payloads.put([make.payload()])[0]
    assert after.segment != before.segment
    assert equal(payloads.get(before), make.payload())
    assert equal(payloads.get(after), make.payload())


def test_without_sync_put_does_not_wait_for_the_disk_and_flush_does(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    store = SegmentPayloadStore(tmp_path, segment_bytes=100, sync=False)
    keys = [store.put([make.payload()])[0] for _ in range(4)]
    assert len({key.segment for key in keys}) > 1
    full = len(synced)
    assert full > 0  # those that are full were flushed before they were let go of
    store.flush()
    store.flush()
    assert len(synced) > full and len(synced) <= 4  # each file once
    assert equal(store.get(keys[0]), make.payload())
    store.close()


def test_long_texts_are_stored_compressed_and_read_back_as_they_were(tmp_path: Path, make: Any) -> None:
    payloads = SegmentPayloadStore(tmp_path)
    text = msgspec.json.encode([{"role": "user", "content": f"line {number} of the file"} for number in range(500)])
    long = msgspec.structs.replace(make.payload(), request_json=text, messages_json=text, reply_json=b"{}", lineage=b"\x00")
    key = payloads.put([long])[0]
    assert key.length < len(text) // 3
    assert equal(payloads.get(key), long)
