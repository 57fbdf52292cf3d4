"""Token columns in append-only segment files.

A segment is a run of records; a record is a header (magic, CRC-32 of the body, body length; 16 bytes, little-endian) and a body
(nine uint32 lengths, then the columns' raw little-endian bytes; longer texts as one zlib stream). Each store instance writes
its own segments, so no two processes write one file, and holds a lock on the one it writes.

Invariants (tests/store/test_store_segments.py):
- `put` returns after what it wrote is in the file, and with `sync` after one fsync of it (and of the directory, when a file is
  new); without, `flush` does that for everything since the last one;
- a torn tail, left by a kill, harms no record before it;
- a damaged, truncated or missing record is a StoreError that names segment and offset, never wrong data;
- a segment that a live process still writes is never deleted; the lock of a full segment is kept until the next `put`, when the
  metadata of the records in it has been committed or given up;
- a segment name that is not a plain file name never reaches the file system.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import struct
import threading
import zlib
from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec
import numpy as np

from whippletree.errors import StoreError
from whippletree.types import CallPayload, PayloadKey, RoutedExperts

MAGIC = b"WTP2"
HEADER = struct.Struct("<4sIQ")  # magic, CRC-32 of the body, bytes in the body
LENGTHS = struct.Struct("<9I")  # prompt ids, sampled ids, logprobs; bytes of experts, request, messages, reply, lineage, stream
COMPRESSED_FROM = 1024  # bytes of texts
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")


def encode_record(payload: CallPayload) -> bytes:
    """One record, header included."""
    prompt = np.ascontiguousarray(payload.prompt_delta, dtype="<i4")
    sampled = np.ascontiguousarray(payload.sampled_ids, dtype="<i4")
    logprobs = np.ascontiguousarray(payload.logprobs, dtype="<f4")
    experts = b"" if payload.experts is None else msgspec.msgpack.encode(payload.experts)
    texts = (payload.request_json, payload.messages_json, payload.reply_json, payload.lineage)  # they repeat one another
    joined = b"".join(texts)
    stream = zlib.compress(joined, 1) if len(joined) >= COMPRESSED_FROM else b""
    sizes = (len(experts), *map(len, texts), len(stream))
    lengths = LENGTHS.pack(prompt.size, sampled.size, logprobs.size, *sizes)
    body = b"".join((lengths, prompt.tobytes(), sampled.tobytes(), logprobs.tobytes(), experts, stream or joined))
    return HEADER.pack(MAGIC, zlib.crc32(body), len(body)) + body


def decode_record(record: bytes) -> CallPayload:
    """The payload of one whole record; its arrays are read-only views of `record`. Raises ValueError with what is wrong."""
    if len(record) < HEADER.size + LENGTHS.size:
        raise ValueError(f"only {len(record)} bytes are there")
    magic, checksum, length = HEADER.unpack_from(record)
    if magic != MAGIC:
        raise ValueError("no record begins there")
    if len(record) != HEADER.size + length:
        raise ValueError(f"{len(record)} bytes are there, the record has {HEADER.size + length}")
    body = memoryview(record)[HEADER.size :]
    if zlib.crc32(body) != checksum:
        raise ValueError("its checksum does not match")
    prompt, sampled, logprobs, extra, *sizes, packed = LENGTHS.unpack_from(body)
    if LENGTHS.size + 4 * (prompt + sampled + logprobs) + extra + (packed or sum(sizes)) != length:
        raise ValueError("its lengths do not add up")
    start = LENGTHS.size
    ids = np.frombuffer(body, dtype="<i4", count=prompt + sampled, offset=start)
    start += ids.nbytes
    floats = np.frombuffer(body, dtype="<f4", count=logprobs, offset=start)
    start += floats.nbytes
    experts = bytes(body[start : start + extra])
    joined = _inflated(body[start + extra :], sum(sizes)) if packed else bytes(body[start + extra :])
    request, messages, reply, lineage = (joined[one:other] for one, other in pairwise(accumulate(sizes, initial=0)))
    return CallPayload(
        prompt_delta=ids[:prompt],
        sampled_ids=ids[prompt:],
        logprobs=floats,
        request_json=request,
        messages_json=messages,
        reply_json=reply,
        lineage=lineage,
        experts=msgspec.msgpack.decode(experts, type=RoutedExperts) if experts else None,
    )


def _inflated(stream: memoryview, size: int) -> bytes:
    """The texts of a record. Raises ValueError."""
    try:
        joined = zlib.decompress(stream, bufsize=max(size, 1))
    except zlib.error as error:
        raise ValueError(f"its texts cannot be inflated: {error}") from error
    if len(joined) != size:
        raise ValueError("its texts have another length")
    return joined


class SegmentPayloadStore:
    """Payloads in segment files of one directory. Safe from any thread; each process opens its own instance."""

    def __init__(
        self, directory: Path, *, instance: str = "", segment_bytes: int = 64 * 1024 * 1024, sync: bool = True
    ) -> None:
        """`instance` is a readable prefix of segment names; a random part makes them unique. Raises StoreError."""
        prefix = f"{instance}-{secrets.token_hex(4)}" if instance else secrets.token_hex(4)
        if not _PLAIN_NAME.fullmatch(prefix):
            raise StoreError(f"{instance!r} cannot be part of a file name", "use letters, digits, '.', '_' and '-'")
        self._directory = directory
        self._prefix = prefix
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._number = 0
        self._name = ""
        self._file = -1
        self._size = 0
        self._full: list[int] = []
        self._sync = sync
        self._unsynced: set[int] = set()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot create {directory}: {error.strerror}", "check the run directory") from error

    def put(self, payloads: Sequence[CallPayload]) -> list[PayloadKey]:
        """Append all (with `sync`, fsync once), return their keys in order. Raises StoreError; then none counts as written."""
        records = [encode_record(payload) for payload in payloads]
        if not records:
            return []
        with self._lock:
            try:
                return self._append(records)
            except OSError as error:
                self._abandon()
                raise StoreError(f"cannot write segment {self._name}: {error.strerror}", "is the disk full?") from error

    def flush(self) -> None:
        """Make everything that was put safe against a power cut. Raises StoreError."""
        with self._lock:
            try:
                self._sync_files()
            except OSError as error:
                raise StoreError(f"cannot flush segment {self._name}: {error.strerror}", "is the disk full?") from error

    def _sync_files(self) -> None:
        while self._unsynced:
            os.fdatasync(self._unsynced.pop())

    def get(self, key: PayloadKey) -> CallPayload:
        """Raises StoreError when the payload is gone or damaged."""
        where = f"payload at {key.segment}:{key.offset} ({key.length} bytes)"
        try:
            file = os.open(self._path(key.segment), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise StoreError(f"{where} is gone: its segment was released", "it can no longer be trained on or shown") from error
        except OSError as error:
            raise StoreError(f"{where} cannot be read: {error.strerror}", "check the disk") from error
        try:
            return decode_record(os.pread(file, key.length, key.offset))
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{where} is damaged: {error}", "leave out this rollout, or restore the file from a copy"
            ) from error
        finally:
            os.close(file)

    def segments(self) -> list[str]:
        """Segments that no live process writes. Raises StoreError."""
        try:
            names = [path.stem for path in self._directory.glob("*.seg")]
        except OSError as error:
            raise StoreError(f"cannot list {self._directory}: {error.strerror}", "check the run directory") from error
        return sorted(name for name in names if self._lock_idle(name, delete=False))

    def remove(self, segments: Collection[str]) -> list[str]:
        """Delete segments of which nothing is wanted any more, except those that a live process still writes.

        Returns the names that are gone now. Raises StoreError.
        """
        return [segment for segment in segments if self._lock_idle(segment, delete=True)]

    def close(self) -> None:
        """Let go of the segments; their locks end here."""
        with self._lock:
            with contextlib.suppress(OSError):  # what could not be flushed now was promised to survive a kill, not a power cut
                self._sync_files()
            for file in (*self._full, self._file):
                if file >= 0:
                    os.close(file)
            self._full.clear()
            self._file, self._size = -1, 0

    def _path(self, segment: str) -> Path:
        if not _PLAIN_NAME.fullmatch(segment):
            raise StoreError(f"{segment!r} is not the name of a segment", "the record that names it is damaged")
        return self._directory / f"{segment}.seg"

    def _append(self, records: Sequence[bytes]) -> list[PayloadKey]:
        while self._full:
            done = self._full.pop()
            if done in self._unsynced:
                self._unsynced.discard(done)
                os.fdatasync(done)
            os.close(done)
        keys = []
        start = 0
        while start < len(records):
            if self._file < 0 or self._size >= self._segment_bytes:
                self._roll()
            stop = start
            offset = self._size
            while stop < len(records) and (stop == start or offset < self._segment_bytes):
                keys.append(PayloadKey(segment=self._name, offset=offset, length=len(records[stop])))
                offset += len(records[stop])
                stop += 1
            _write_all(self._file, b"".join(records[start:stop]), self._size)
            self._size = offset
            self._unsynced.add(self._file)
            start = stop
        if self._sync:
            self._sync_files()
        return keys

    def _roll(self) -> None:
        """Begin the next segment: create it, lock it, make its name durable."""
        while True:
            self._number += 1
            name = f"{self._prefix}-{self._number:04d}"
            path = self._path(name)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink > 0:
                break
            os.close(file)  # another process took it for a left-over before it was locked
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        if self._file >= 0:
            self._full.append(self._file)
        self._name, self._file, self._size = name, file, 0

    def _abandon(self) -> None:
        """After a failed write or fsync nothing more goes into this segment: what it holds beyond its records is unknown."""
        if self._file >= 0:
            self._full.append(self._file)
        self._file, self._size = -1, 0

    def _lock_idle(self, segment: str, *, delete: bool) -> bool:
        """Whether nobody writes this segment (True too when it is gone); if so, delete it when asked to."""
        path = self._path(segment)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}", "check the run directory") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if delete:
                path.unlink(missing_ok=True)
            return True
        except BlockingIOError:
            return False
        except OSError as error:
            raise StoreError(f"cannot delete {path}: {error.strerror}", "check the run directory") from error
        finally:
            os.close(file)


def _write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        offset += written
        view = view[written:]
