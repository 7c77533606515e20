"""Open volumes."""

from __future__ import annotations

import atexit
import os
import stat as _stat
import sys
import threading
import warnings
import weakref
from typing import Any, Callable, Iterable, Iterator, Optional, Union

from . import _steadfs
from ._entries import DirEntry, Usage
from ._files import RawFile, buffered, check_layers, raw_mode
from ._paths import Path, VolumePath, path_bytes
from ._stat import Stat, stat_of
from ._tools import Image, Options, image_path, option_list, partition_name

#: A file with the bytes of a key, or the descriptor of a key for policies of version 1 (16 hexadecimal digits) and its file.
KeyFile = Union[str, "os.PathLike[str]", "tuple[str, Union[str, os.PathLike[str]]]"]
#: Called with the error of a directory that cannot be read.
OnError = Optional[Callable[[OSError], object]]

_open_volumes: weakref.WeakSet[Volume] = weakref.WeakSet()
#: Held where it is changed and copied. Reentrant, because the garbage collector may run meanwhile.
_open_volumes_lock = threading.RLock()


def _forked() -> None:
    """A thread that held the lock is not in the child."""
    global _open_volumes_lock
    _open_volumes_lock = threading.RLock()


os.register_at_fork(after_in_child=_forked)


class Volume:
    """An open volume. ``steadfs.open`` opens one; ``close`` or the end of a ``with`` block closes it.

    Paths begin at the volume's root, with a slash or without. They are text, in which bytes that are not UTF-8 stand as by
    ``os.fsdecode``, or bytes, ``pathlib.PurePosixPath`` or ``steadfs.Path``. Symbolic links are followed inside the volume.
    Permissions are not checked: calls have the rights of the volume's owner. Threads may share a volume.
    """

    _native: Any = None

    def __init__(
        self,
        image: Image,
        mode: str = "r",
        *,
        partition: Union[int, str, None] = None,
        options: Options = "",
        key_files: Iterable[KeyFile] = (),
        staged: bool = False,
        salvage: bool = False,
    ) -> None:
        self._warns_unclosed = True
        if mode not in ("r", "r+"):
            raise ValueError(f"the mode of a volume is 'r' or 'r+', not {mode!r}; steadfs.format makes one")
        write = mode == "r+"
        if staged and not write:
            raise ValueError("only a volume that is written (mode 'r+') has staged changes")
        if salvage and write:
            raise ValueError("a corrupt volume is salvaged by reading (mode 'r')")
        #: The image, device or NBD URI.
        self.image = image_path(image)
        self.mode = mode
        #: Whether all changes are written together when the volume is closed, or none.
        self.staged = staged
        name, words = partition_name(partition), option_list(options)
        self._pid = os.getpid()
        #: Open files and the layers above them.
        self._files: weakref.WeakSet[Any] = weakref.WeakSet()
        self._open_count = 0
        #: For the two above. Reentrant, because the garbage collector may close a file meanwhile.
        self._lock = threading.RLock()
        #: Held by ``close`` and ``discard``.
        self._ending = threading.RLock()
        self._closing = False
        #: Whether the volume was dropped and is closed with its last file.
        self._ends_with_files = False
        #: The first error of a file that was dropped or closed by the volume.
        self._lost: Optional[BaseException] = None
        self._native = _steadfs.Volume(self.image, write, staged, salvage, name, words)
        #: ``ext2``, ``ext3``, ``ext4`` or ``f2fs``.
        self.kind: str = self._native.kind
        #: In bytes.
        self.block_size: int = self._native.block_size
        #: What was skipped, or should be checked: sentences.
        self.warnings: list[str] = self._native.warnings
        with _open_volumes_lock:
            _open_volumes.add(self)
        try:
            for key_file in key_files:
                self.add_key(key_file)
        except BaseException:
            self.discard() if staged else self.close()
            raise

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<steadfs.Volume {self.image!r} {self.kind} mode={self.mode!r}{state}>"

    # Beginning and end.

    @property
    def closed(self) -> bool:
        return self._native is None or self._native.closed

    def __enter__(self) -> Volume:
        if self.closed:
            raise ValueError("the volume is closed")
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        if error is not None and self.staged:
            self.discard()
        else:
            self.close()

    def close(self) -> None:
        """Closes all files of the volume, writes everything and gives up the image. An ``OSError`` means that something was not
        written; the volume is closed then, too, and nothing of a staged one is written. If the error of a staged volume is
        ``EBUSY``, another thread is in a call on it: its files are closed, and ``close`` can be called again. Closing a closed
        volume does nothing."""
        self._end(True)

    def discard(self) -> None:
        """Closes a staged volume without its changes."""
        if not self.staged:
            raise ValueError("changes of a volume that is not staged are written as they are made: they cannot be discarded")
        self._end(False)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            why = f"the volume was opened by process {self._pid}: a forked process must open it itself"
            raise RuntimeError(why)

    def _end(self, keeps: bool) -> None:
        """Closes the volume. A staged one is written if ``keeps`` is set."""
        self._check_process()
        with self._ending:
            if self.closed:
                return
            all_closed = False
            try:
                first = self._each_file(lambda file: file.close(), closing=True)
                self._lost = self._lost or first
                all_closed = True
            finally:
                try:
                    self._end_native(keeps and (all_closed or not self.staged))
                finally:
                    self._closing = False

    def _end_native(self, keeps: bool) -> None:
        lost, self._lost = self._lost, None
        if self.staged and (lost is not None or not keeps):
            self._native.discard()
            if keeps and lost is not None:
                raise lost
            return
        try:
            self._native.close()
        except BaseException as error:
            if lost is None:
                raise
            raise lost from error
        if lost is not None:
            raise lost

    def _each_file(self, call: Callable[[Any], object], closing: bool = False) -> Optional[BaseException]:
        """Calls ``call`` with each layer of each open file, text before its buffer. Returns the first error."""
        first: Optional[BaseException] = None
        with self._lock:
            self._closing = closing or self._closing
            files = list(self._files)
        for file in sorted(files, key=lambda file: file._level, reverse=True):
            try:
                if not file._detached and not file.closed:
                    call(file)
            except BaseException as error:
                first = first or error
        return first

    def _keep(self, file: Any) -> None:
        """Registers a file, or a layer above one, to be closed with the volume."""
        with self._lock:
            if self._closing:
                raise ValueError("the volume is closed")
            self._files.add(file)
            self._open_count += file._level == 0

    def _file_closed(self) -> None:
        if self._pid != os.getpid():
            return
        with self._lock:
            self._open_count -= 1
            ends = self._ends_with_files and self._open_count == 0
        if ends and not self.closed:
            self._drop()

    def _drop(self, warn: Callable[..., None] = warnings.warn) -> None:
        """Closes a volume that was not closed: what a staged one has not written is discarded."""
        text = f"unclosed volume {self!r}"
        if self.staged:
            text = f"unclosed staged volume {self!r}: its changes are discarded"
        try:
            self._end(not self.staged)
        finally:
            if self._warns_unclosed:
                warn(text, ResourceWarning, stacklevel=2, source=self)

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if self.closed:
            return
        with self._lock:
            # Only in a garbage cycle, whose files have buffers to write.
            self._ends_with_files = self._open_count > 0 and not self.staged
        if not self._ends_with_files:
            self._drop(_warn)

    def sync(self) -> None:
        """Makes everything durable, as sync(2), buffers of open files included."""
        self._check_process()
        # What is in the buffer of an open file is kept there after an error.
        first = self._each_file(_flush)
        lost = self._lost or first
        if not self.staged:
            # A staged volume is not written after the loss.
            self._lost = None
        try:
            self._native.sync()
        finally:
            if lost is not None:
                raise lost

    def add_key(self, key_file: KeyFile) -> None:
        """Adds the key of encrypted files, which are encoded names without it."""
        descriptor = None
        if isinstance(key_file, tuple):
            text, key_file = key_file
            descriptor = bytes.fromhex(text)
            if len(descriptor) != 8:
                raise ValueError("a descriptor has 16 hexadecimal digits")
        self._native.add_key(os.fsdecode(key_file), descriptor)

    @property
    def recovered(self) -> int:
        """Blocks of the journal that were replayed when the volume was opened, or on f2fs files that roll-forward recovered. With the
        mode ``r`` they are in memory only."""
        return sum(self._native.recovered)

    def usage(self) -> Usage:
        return Usage(*self._native.usage())

    # Paths.

    @property
    def root(self) -> Path:
        return Path(self, "/")

    def path(self, *parts: VolumePath) -> Path:
        """A path of this volume; so is ``volume / "etc"``."""
        return Path(self, "/").joinpath(*parts)

    def __truediv__(self, part: VolumePath) -> Path:
        return Path(self, "/").joinpath(part)

    # Files.

    def open(
        self,
        path: VolumePath,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
        *,
        permissions: int = 0o644,
    ) -> Any:
        """Opens a file as the built-in ``open``. ``permissions`` are those of a file that is made."""
        letters, binary = raw_mode(mode)
        check_layers(binary, buffering, encoding, errors, newline)
        raw = self._open_raw(path, letters, permissions)
        try:
            return buffered(raw, binary, buffering, encoding, errors, newline)
        except BaseException:
            raw.close()
            raise

    def _open_raw(self, path: VolumePath, letters: str, permissions: int = 0o644) -> RawFile:
        where = path_bytes(path)
        if self._closing:
            raise ValueError("the volume is closed")
        file = self._native.open_file(where, letters, permissions)
        return RawFile(self, file, os.fsdecode(where), letters)

    def read_bytes(self, path: VolumePath) -> bytes:
        with self.open(path, "rb", 0) as file:
            return file.read()

    def write_bytes(self, path: VolumePath, data: Any) -> int:
        data = memoryview(data)
        with self.open(path, "wb", 0) as file:
            return file.write(data)

    def read_text(self, path: VolumePath, encoding: Optional[str] = None, errors: Optional[str] = None) -> str:
        with self.open(path, "r", encoding=encoding, errors=errors) as file:
            return file.read()

    def write_text(
        self, path: VolumePath, data: str, encoding: Optional[str] = None, errors: Optional[str] = None
    ) -> int:
        if not isinstance(data, str):
            raise TypeError(f"the data of a text file is str, not {type(data).__name__}")
        with self.open(path, "w", encoding=encoding, errors=errors) as file:
            return file.write(data)

    def truncate(self, path: VolumePath, size: int) -> None:
        with self.open(path, "r+b", 0) as file:
            file.truncate(size)

    # Attributes.

    def stat(self, path: VolumePath, *, follow_symlinks: bool = True) -> Stat:
        return stat_of(self._native.stat(path_bytes(path), follow_symlinks))

    def lstat(self, path: VolumePath) -> Stat:
        return self.stat(path, follow_symlinks=False)

    def exists(self, path: VolumePath, *, follow_symlinks: bool = True) -> bool:
        return self._mode(path, follow_symlinks) is not None

    def is_dir(self, path: VolumePath) -> bool:
        return _stat.S_ISDIR(self._mode(path) or 0)

    def is_file(self, path: VolumePath) -> bool:
        return _stat.S_ISREG(self._mode(path) or 0)

    def is_symlink(self, path: VolumePath) -> bool:
        return _stat.S_ISLNK(self._mode(path, follow_symlinks=False) or 0)

    def _mode(self, path: VolumePath, follow_symlinks: bool = True) -> Optional[int]:
        try:
            return self.stat(path, follow_symlinks=follow_symlinks).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None

    def chmod(self, path: VolumePath, mode: int) -> None:
        self._native.set_permissions(path_bytes(path), mode)

    def chown(self, path: VolumePath, uid: int = -1, gid: int = -1, *, follow_symlinks: bool = True) -> None:
        """Sets user and group; -1 leaves one."""
        owner = (None if uid == -1 else uid, None if gid == -1 else gid)
        self._native.set_owner(path_bytes(path), owner, follow_symlinks)

    def utime(
        self,
        path: VolumePath,
        times: Optional[tuple[float, float]] = None,
        *,
        ns: Optional[tuple[int, int]] = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Sets the times of access and content: in seconds, or in nanoseconds (``ns``), or to the present."""
        if times is not None and ns is not None:
            raise ValueError("utime takes times or ns, not both")
        if ns is None:
            import time

            ns = (time.time_ns(),) * 2 if times is None else (int(times[0] * 10**9), int(times[1] * 10**9))
        both = (divmod(ns[0], 10**9), divmod(ns[1], 10**9))
        self._native.set_times(path_bytes(path), both, follow_symlinks)

    def xattrs(self, path: VolumePath, *, follow_symlinks: bool = True) -> dict[str, bytes]:
        """The extended attributes, by their full names (``user.comment``)."""
        found = self._native.xattrs(path_bytes(path), follow_symlinks)
        return {os.fsdecode(name): value for name, value in found}

    def set_xattr(self, path: VolumePath, name: str, value: bytes) -> None:
        self._native.set_xattr(path_bytes(path), os.fsencode(name), value)

    def remove_xattr(self, path: VolumePath, name: str) -> None:
        self._native.set_xattr(path_bytes(path), os.fsencode(name), None)

    # Directories.

    def scandir(self, path: VolumePath = "/") -> Iterator[DirEntry]:
        """The entries of a directory, without ``.`` and ``..``, in its order. They are read in batches: memory does not grow with it."""
        where = path_bytes(path)
        return self._entries(self._native.list_dir(where), where)

    def _entries(self, listing: _steadfs.Listing, where: bytes) -> Iterator[DirEntry]:
        start = os.fsdecode(where.rstrip(b"/")) + "/"
        while True:
            batch, error = listing.batch()
            for name, ino, kind in batch:
                yield DirEntry(self, start + os.fsdecode(name), ino, kind)
            if error is not None:
                raise error
            if not batch:
                return

    def listdir(self, path: VolumePath = "/") -> list[str]:
        return [entry.name for entry in self.scandir(path)]

    def scantree(
        self, path: VolumePath = "/", *, stat: bool = False, on_error: OnError = None
    ) -> Iterator[DirEntry]:
        """Everything below a directory, each directory before what is in it. With ``stat`` the attributes are read along. Links are
        not followed. An error of a directory is raised, or given to ``on_error``, and the walk goes on."""
        return self._steps(self._native.walk(path_bytes(path), stat), on_error)

    def _steps(self, walk: _steadfs.Walk, on_error: OnError) -> Iterator[DirEntry]:
        while True:
            batch, error = walk.batch()
            for found, ino, kind, attributes in batch:
                known = None if attributes is None else stat_of(attributes)
                yield DirEntry(self, os.fsdecode(found), ino, kind, known)
            if error is not None:
                if on_error is None:
                    raise error
                on_error(error)
            elif not batch:
                return

    def walk(
        self, top: VolumePath = "/", topdown: bool = True, on_error: OnError = None, follow_symlinks: bool = False
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """As ``os.walk``: directory, names of directories in it, other names. A directory that lies in itself, on a corrupt volume or
        through a link, is entered once."""
        yield from self._walk(os.fsdecode(path_bytes(top)), topdown, on_error, follow_symlinks, set())

    def _walk(
        self, top: str, topdown: bool, on_error: OnError, follow: bool, seen: set[int]
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        stack: list[Any] = [top]
        while stack:
            current = stack.pop()
            if isinstance(current, tuple):
                yield current
                continue
            directories: list[str] = []
            others: list[str] = []
            try:
                ino = self.stat(current).st_ino
                if ino in seen:
                    continue
                seen.add(ino)
                for entry in self.scandir(current):
                    is_dir = entry.is_dir(follow_symlinks=follow)
                    (directories if is_dir else others).append(entry.name)
            except OSError as error:
                if on_error is not None:
                    on_error(error)
                continue
            if topdown:
                yield current, directories, others
            else:
                stack.append((current, directories, others))
            start = current.rstrip("/") + "/"
            stack.extend(start + name for name in reversed(directories))

    def mkdir(self, path: VolumePath, mode: int = 0o755) -> None:
        self._native.create_dir(path_bytes(path), mode)

    def makedirs(self, path: VolumePath, mode: int = 0o755, exist_ok: bool = False) -> None:
        Path(self, path).mkdir(mode, parents=True, exist_ok=exist_ok)

    # Names.

    def remove(self, path: VolumePath) -> None:
        """Removes the name of a file that is not a directory."""
        self._native.remove_file(path_bytes(path))

    unlink = remove

    def rmdir(self, path: VolumePath) -> None:
        self._native.remove_dir(path_bytes(path))

    def rmtree(self, path: VolumePath) -> None:
        """Removes a directory with all that is in it. Links are removed, not followed."""
        self._native.remove_tree(path_bytes(path))

    def rename(self, source: VolumePath, target: VolumePath) -> None:
        """As rename(2): a file at the new name is replaced."""
        self._native.rename(path_bytes(source), path_bytes(target))

    replace = rename

    def symlink(self, target: VolumePath, link: VolumePath) -> None:
        """Makes a symbolic link to ``target``, which is kept as it is."""
        self._native.symlink(path_bytes(target), path_bytes(link))

    def readlink(self, path: VolumePath) -> str:
        return os.fsdecode(self._native.read_link(path_bytes(path)))

    def link(self, source: VolumePath, name: VolumePath) -> None:
        """Gives a file another name."""
        self._native.hard_link(path_bytes(source), path_bytes(name))

    def mknod(self, path: VolumePath, mode: int = 0o600 | _stat.S_IFREG, device: int = 0) -> None:
        """Makes a device node, a pipe, a socket or an empty file. Nodes have no effect on this machine."""
        self._native.create_node(path_bytes(path), mode, device)

    # Between the host and the volume.

    def copy_in(self, source: Image, target: VolumePath) -> int:
        """Copies a file or tree of the host with all attributes, holes and hard links. Existing files are not changed. Returns the
        number of files. Raises the error of the first file that was not copied, when all others are."""
        return self._native.copy(os.fsdecode(source), os.fsdecode(path_bytes(target)), True, None)

    def copy_out(self, source: VolumePath, target: Image, *, max_bytes: Optional[int] = None) -> int:
        """The same to the host, with all attributes that the caller may set there; nothing is written outside ``target``. The copy
        ends when the files have more data than ``max_bytes``: 16 times the size of the volume if it is not given, because on a
        hostile volume many files can share blocks."""
        return self._native.copy(os.fsdecode(path_bytes(source)), os.fsdecode(target), False, max_bytes)


def open(
    image: Image,
    mode: str = "r",
    *,
    partition: Union[int, str, None] = None,
    options: Options = "",
    key_files: Iterable[KeyFile] = (),
    staged: bool = False,
    salvage: bool = False,
) -> Volume:
    """Opens the volume on an image file, a block device or an NBD export (``nbd://host/export``).

    ``mode``: ``"r"`` writes nothing at all, a journal is replayed in memory; ``"r+"`` is for reading and writing.
    ``partition``: the number, name or label of a partition of a disk; of ``"super@system_a"`` partition ``system_a`` of ``super``.
    ``options``: as ``-o`` of the program takes them.
    ``key_files``: keys of encrypted files.
    ``staged``: all changes are written together by ``close``, or none: after an exception in a ``with`` block there are none.
    ``salvage``: metadata that reading can do without may be corrupt.
    """
    return Volume(
        image,
        mode,
        partition=partition,
        options=options,
        key_files=key_files,
        staged=staged,
        salvage=salvage,
    )


def _flush(file: Any) -> None:
    try:
        if file.writable():
            file.flush()
    except ValueError:
        # Another thread may have closed or detached it.
        if not file._detached and not file.closed:
            raise


@atexit.register
def _close_all() -> None:
    """Closes what is still open when the interpreter ends, which writes it, unless it is staged."""
    with _open_volumes_lock:
        volumes = list(_open_volumes)
    for volume in volumes:
        try:
            if not volume.closed:
                volume._drop()
        except BaseException as error:
            print(f"steadfs: {volume.image}: {error}", file=sys.stderr)
