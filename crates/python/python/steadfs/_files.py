"""Open files: ``RawFile`` is an ``io.RawIOBase``, so buffers, text, archives and data frames of other libraries work on it."""

from __future__ import annotations

import codecs
import errno
import io
import operator
import os
import threading
from typing import TYPE_CHECKING, Any, Optional

from . import _steadfs
from ._stat import Stat, stat_of

if TYPE_CHECKING:
    from ._volume import Volume

#: Bytes that a buffer holds: a call of the library costs about as much as reading 4 KiB.
BUFFER_BYTES = 256 << 10
#: The largest offset in a file (loff_t).
OFFSET_MAX = (1 << 63) - 1


class RawFile(io.RawIOBase):
    """A file of a volume without a buffer. Each call is one of the volume. Threads may share it: calls that use the position
    run one after the other, ``pread`` and ``pwrite`` side by side."""

    #: Layers are closed from the highest level to the lowest.
    _level = 0
    #: Whether a buffer of this package, which closes this file, is above it.
    _covered = False
    _detached = False
    #: Whether ``close`` makes the file durable.
    _syncs = False
    _volume: Optional[Volume] = None

    def __init__(self, volume: Volume, file: _steadfs.File, name: str, mode: str) -> None:
        super().__init__()
        self._file = file
        self._position = 0
        # Reentrant, because a signal handler may use the file that it interrupts.
        self._turn = threading.RLock()
        #: Held by ``close`` of this file and of the layers above it.
        self._closing = threading.RLock()
        self._appends = "a" in mode
        self._reads = "r" in mode or "+" in mode
        self._writes = "r" not in mode or "+" in mode
        #: The path on the volume.
        self.name = name
        self.mode = mode.replace("t", "").replace("b", "") + "b"
        if self._appends:
            self._position = file.size()
        volume._keep(self)
        # An open file keeps its volume open.
        self._volume = volume

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<steadfs.RawFile {self.name!r} mode={self.mode!r}{state}>"

    def _check(self, allowed: bool, what: str) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not allowed:
            raise io.UnsupportedOperation(f"not open for {what}")

    def _offset(self, value: int) -> int:
        if not 0 <= operator.index(value) <= OFFSET_MAX:
            raise OSError(errno.EINVAL, "not an offset or size from 0 to 2^63 - 1", self.name)
        return value

    @property
    def size(self) -> int:
        """Bytes of the file, without those in buffers."""
        self._check(True, "")
        return self._file.size()

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
        return self._file.read_at(_count(size), self._offset(offset))

    def pwrite(self, data: Any, offset: int) -> int:
        """Writes all of ``data`` at ``offset``. The position stays."""
        self._check(self._writes and not self._appends, "writing at an offset")
        return self._file.write_at(data, self._offset(offset))

    def read(self, size: Optional[int] = -1) -> bytes:
        self._check(self._reads, "reading")
        with self._turn:
            data = self._file.read_at(-1 if size is None else _count(size), self._position)
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
            found = self._file.seek_to(whence == os.SEEK_HOLE, offset) if 0 <= offset <= OFFSET_MAX else None
            if found is None:
                raise OSError(6, "no data or hole after this offset", self.name)
            return found
        starts = {os.SEEK_SET: lambda: 0, os.SEEK_CUR: lambda: self._position, os.SEEK_END: self._file.size}
        if whence not in starts:
            raise ValueError(f"invalid whence: {whence}")
        target = starts[whence]() + offset
        return self._offset(target)

    def truncate(self, size: Optional[int] = None) -> int:
        self._check(self._writes, "writing")
        size = self.tell() if size is None else size
        self._file.set_len(self._offset(size))
        return size

    def stat(self) -> Stat:
        """The attributes of the file, which may have another name or none by now."""
        self._check(True, "")
        return stat_of(self._file.stat())

    def allocate(self, offset: int, length: int) -> None:
        """Reserves space, as posix_fallocate(3)."""
        self._check(self._writes, "writing")
        self._file.allocate(False, self._offset(offset), self._offset(length))

    def punch_hole(self, offset: int, length: int) -> None:
        """Frees the space of a range, which reads as zeros then."""
        self._check(self._writes, "writing")
        self._file.allocate(True, self._offset(offset), self._offset(length))

    def sync(self, data_only: bool = False) -> None:
        """Makes the file durable, as fsync(2) or fdatasync(2). A buffer above must have been flushed."""
        self._check(True, "")
        self._file.sync(data_only)

    def close(self) -> None:
        with self._closing:
            volume, self._volume = self._volume, None
            try:
                if self._syncs and not self.closed:
                    self._file.sync(False)
            finally:
                try:
                    super().close()
                finally:
                    self._file.close()
                    if volume is not None:
                        volume._file_closed()

    def __del__(self) -> None:
        # The garbage collector finalizes a cycle in any order: the layer above writes its buffer before it closes this file.
        if not self._covered and self._volume is not None:
            _finalize(self, self._volume)


def _count(size: int) -> int:
    """A number of bytes that the extension takes; -1: all."""
    return min(max(operator.index(size), -1), OFFSET_MAX)


def _finalize(layer: Any, volume: Optional[Volume]) -> None:
    """Closes what is dropped. The volume reports the error when it is synced or closed."""
    try:
        layer.close()
    except BaseException as error:
        if volume is not None:
            volume._lost = volume._lost or error


class _Layer:
    """What the layers above a raw file have in common: a close of one thread waits for that of another one, and in a garbage
    cycle the highest layer is closed first."""

    _covered = False
    _detached = False
    _raw_file: Optional[RawFile] = None

    def _on(self, raw: RawFile, below: Any) -> None:
        """Puts the layer above ``below``."""
        self._raw_file = raw
        below._covered = True
        if raw._volume is not None:
            raw._volume._keep(self)

    def close(self) -> None:
        if self._raw_file is None:
            super().close()  # type: ignore[misc]
            return
        with self._raw_file._closing:
            super().close()  # type: ignore[misc]

    def detach(self) -> Any:
        below = super().detach()  # type: ignore[misc]
        self._detached = True
        below._covered = False
        return below

    def __del__(self) -> None:
        if not self._covered and not self._detached and self._raw_file is not None:
            _finalize(self, self._raw_file._volume)


class _Buffer(_Layer):
    _level = 1

    @property
    def size(self) -> int:
        """Bytes of the file, without those in the buffer."""
        return self.raw.size  # type: ignore[attr-defined]


class BufferedReader(_Buffer, io.BufferedReader):
    pass


class BufferedWriter(_Buffer, io.BufferedWriter):
    pass


class BufferedRandom(_Buffer, io.BufferedRandom):
    pass


class Text(_Layer, io.TextIOWrapper):
    _level = 2


def raw_mode(mode: str) -> tuple[str, bool]:
    """The mode of the raw file, and whether it is of bytes."""
    letters = set(mode)
    if len(letters) != len(mode) or not letters <= set("rwaxbt+") or {"b", "t"} <= letters:
        raise ValueError(f"invalid mode: {mode!r}")
    return mode.replace("b", "").replace("t", ""), "b" in letters


def check_layers(
    binary: bool, buffering: int, encoding: Optional[str], errors: Optional[str], newline: Optional[str]
) -> None:
    """Checks the arguments of ``open`` before a file is made or truncated."""
    operator.index(buffering)
    if binary:
        if (encoding, errors, newline) != (None, None, None):
            raise ValueError("binary mode takes no encoding, errors or newline argument")
        return
    if buffering == 0:
        raise ValueError("can't have unbuffered text I/O")
    io.TextIOWrapper(io.BytesIO(), encoding, errors, newline)
    if errors is not None:
        codecs.lookup_error(errors)


def buffered(
    raw: RawFile,
    binary: bool,
    buffering: int,
    encoding: Optional[str],
    errors: Optional[str],
    newline: Optional[str],
) -> Any:
    """What ``open`` returns for a raw file, as the built-in one."""
    if buffering == 0:
        return raw
    size = buffering if buffering > 1 else BUFFER_BYTES
    above: Any
    if raw._reads and raw._writes:
        above = BufferedRandom(raw, size)
    elif raw._writes:
        above = BufferedWriter(raw, size)
    else:
        above = BufferedReader(raw, size)
    above._on(raw, raw)
    if binary:
        return above
    text = Text(above, encoding, errors, newline, line_buffering=buffering == 1)
    text._on(raw, above)
    text.mode = raw.mode[:-1]  # type: ignore[misc]
    return text
