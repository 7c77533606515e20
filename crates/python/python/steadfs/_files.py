"""Open files: ``RawFile`` is an ``io.RawIOBase``, so buffers, text, archives and data frames of other libraries work on it."""

from __future__ import annotations

import io
import os
import threading
from typing import TYPE_CHECKING, Any, Optional

from . import _steadfs
from ._stat import Stat, stat_of

if TYPE_CHECKING:
    from ._volume import Volume

#: Bytes that a buffer holds: a call of the library costs about as much as reading 4 KiB.
BUFFER_BYTES = 256 << 10


class RawFile(io.RawIOBase):
    """A file of a volume without a buffer. Each call is one of the volume. Threads may share it: calls that use the position
    run one after the other, ``pread`` and ``pwrite`` side by side."""

    def __init__(self, volume: Volume, file: _steadfs.File, name: str, mode: str) -> None:
        super().__init__()
        # An open file keeps its volume open.
        self._volume: Optional[Volume] = volume
        self._file = file
        self._position = 0
        self._turn = threading.Lock()
        self._appends = "a" in mode
        self._reads = "r" in mode or "+" in mode
        self._writes = "r" not in mode or "+" in mode
        #: The path on the volume.
        self.name = name
        self.mode = mode.replace("t", "").replace("b", "") + "b"
        if self._appends:
            self._position = file.size()

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<steadfs.RawFile {self.name!r} mode={self.mode!r}{state}>"

    def _check(self, allowed: bool, what: str) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not allowed:
            raise io.UnsupportedOperation(f"not open for {what}")

    def readable(self) -> bool:
        self._check(True, "")
        return self._reads

    def writable(self) -> bool:
        self._check(True, "")
        return self._writes

    def seekable(self) -> bool:
        self._check(True, "")
        return True

    def pread(self, size: int, offset: int) -> bytes:
        """Reads up to ``size`` bytes (-1: all) at ``offset``, fewer only at the end of the file. The position stays."""
        self._check(self._reads, "reading")
        return self._file.read_at(size, offset)

    def pwrite(self, data: Any, offset: int) -> int:
        """Writes all of ``data`` at ``offset``. The position stays."""
        self._check(self._writes and not self._appends, "writing at an offset")
        return self._file.write_at(data, offset)

    def read(self, size: Optional[int] = -1) -> bytes:
        self._check(self._reads, "reading")
        with self._turn:
            data = self._file.read_at(-1 if size is None else size, self._position)
            self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read(-1)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        self._check(self._writes, "writing")
        with self._turn:
            if self._appends:
                length = memoryview(data).nbytes
                self._position = self._file.append(data) + length
                return length
            length = self._file.write_at(data, self._position)
            self._position += length
            return length

    def tell(self) -> int:
        self._check(True, "")
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As ``io.IOBase.seek``; also ``os.SEEK_DATA`` and ``os.SEEK_HOLE``, which fail with ``ENXIO`` behind the last data."""
        self._check(True, "")
        with self._turn:
            self._position = self._target(offset, whence)
            return self._position

    def _target(self, offset: int, whence: int) -> int:
        if whence in (os.SEEK_DATA, os.SEEK_HOLE):
            found = self._file.seek_to(whence == os.SEEK_HOLE, offset) if offset >= 0 else None
            if found is None:
                raise OSError(6, "no data or hole after this offset", self.name)
            return found
        starts = {os.SEEK_SET: lambda: 0, os.SEEK_CUR: lambda: self._position, os.SEEK_END: self._file.size}
        if whence not in starts:
            raise ValueError(f"invalid whence: {whence}")
        target = starts[whence]() + offset
        if target < 0:
            raise OSError(22, "seek to before the start of the file", self.name)
        return target

    def truncate(self, size: Optional[int] = None) -> int:
        self._check(self._writes, "writing")
        size = self.tell() if size is None else size
        if size < 0:
            raise OSError(22, "negative size", self.name)
        self._file.set_len(size)
        return size

    def stat(self) -> Stat:
        """The attributes of the file, which may have another name or none by now."""
        self._check(True, "")
        return stat_of(self._file.stat())

    def allocate(self, offset: int, length: int) -> None:
        """Reserves space, as posix_fallocate(3)."""
        self._check(self._writes, "writing")
        self._file.allocate(False, offset, length)

    def punch_hole(self, offset: int, length: int) -> None:
        """Frees the space of a range, which reads as zeros then."""
        self._check(self._writes, "writing")
        self._file.allocate(True, offset, length)

    def sync(self, data_only: bool = False) -> None:
        """Makes the file durable, as fsync(2) or fdatasync(2). A buffer above must have been flushed."""
        self._check(True, "")
        self._file.sync(data_only)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._file.close()
            self._volume = None


def raw_mode(mode: str) -> tuple[str, bool]:
    """The mode of the raw file, and whether it is of bytes."""
    letters = set(mode)
    if len(letters) != len(mode) or not letters <= set("rwaxbt+") or {"b", "t"} <= letters:
        raise ValueError(f"invalid mode: {mode!r}")
    return mode.replace("b", "").replace("t", ""), "b" in letters


def buffered(
    raw: RawFile,
    binary: bool,
    buffering: int,
    encoding: Optional[str],
    errors: Optional[str],
    newline: Optional[str],
) -> Any:
    """What ``open`` returns for a raw file, as the built-in one."""
    if binary and (encoding, errors, newline) != (None, None, None):
        raise ValueError("binary mode takes no encoding, errors or newline argument")
    if buffering == 0:
        if not binary:
            raise ValueError("can't have unbuffered text I/O")
        return raw
    size = buffering if buffering > 1 else BUFFER_BYTES
    above: Any
    if raw._reads and raw._writes:
        above = io.BufferedRandom(raw, size)
    elif raw._writes:
        above = io.BufferedWriter(raw, size)
    else:
        above = io.BufferedReader(raw, size)
    if binary:
        return above
    text = io.TextIOWrapper(above, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = raw.mode[:-1]  # type: ignore[misc]
    return text
