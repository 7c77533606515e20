"""Volumes as a file system of fsspec, for pandas, pyarrow and others: ``steadfs://etc/hostname`` with ``image="disk.img"``, or
``steadfs://etc/hostname::disk.img``.

It is registered as ``steadfs`` when the package is installed.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import stat as _stat
import threading
import uuid
import weakref
from datetime import datetime, timezone
from typing import Any, Iterable, Optional, Union

from fsspec.spec import AbstractFileSystem

from ._entries import DirEntry
from ._files import BUFFER_BYTES, BufferedWriter, RawFile, buffered, raw_mode
from ._stat import Stat
from ._tools import Image, Options, option_list
from ._volume import KeyFile, Volume

_TYPES = {_stat.S_IFDIR: "directory", _stat.S_IFREG: "file", _stat.S_IFLNK: "link"}

#: Protocols of files of this machine.
_ON_HOST = (None, "file", "local")
_URI = re.compile(r"nbds?(\+unix)?://")
#: Arguments that fsspec takes for every file system.
_OF_FSSPEC = frozenset(
    {
        "add_aliases",
        "add_docs",
        "asynchronous",
        "batch_size",
        "listings_expiry_time",
        "loop",
        "max_paths",
        "skip_instance_cache",
        "use_listings_cache",
    }
)

#: Open volumes by the arguments that opened them.
_volumes: weakref.WeakValueDictionary[Any, Volume] = weakref.WeakValueDictionary()
_turn = threading.Lock()


def _forked() -> None:
    """A thread that held the lock is not in the child."""
    global _turn
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_forked)


class _Committed(BufferedWriter):
    """A file of a transaction: it gets its name when the transaction ends."""

    def __init__(self, fs: SteadfsFileSystem, raw: RawFile, path: str, exclusive: bool, buffer_size: int) -> None:
        super().__init__(raw, buffer_size)
        self._fs, self.path, self._made, self._exclusive = fs, path, raw.name, exclusive
        self._on(raw, raw)

    def commit(self) -> None:
        self.close()
        if self._exclusive:
            # Unlike a rename, it does not replace a file that was made meanwhile.
            self._fs.volume.link(self._made, self.path)
            self._fs.volume.remove(self._made)
        else:
            self._fs.volume.rename(self._made, self.path)

    def discard(self) -> None:
        if self._raw_file is not None:
            self._raw_file._syncs = False
        try:
            self.close()
        finally:
            self._fs.volume.remove(self._made)


class SteadfsFileSystem(AbstractFileSystem):
    """The files of a volume.

    ``image`` (or ``fo``, as a chain of URLs gives it), ``partition``, ``options``, ``key_files`` and ``salvage`` are those of
    ``steadfs.open``. The volume is only read unless ``write`` is set; then the content of a file is durable when the file is
    closed, and everything after ``sync`` or ``close``, or when the last instance and file are dropped. Instances with the same
    arguments share the open volume.
    """

    protocol = "steadfs"
    root_marker = "/"
    #: An instance that fsspec kept would keep the image in use.
    cachable = False
    #: What a volume lists changes with it.
    use_listings_cache = False

    def __init__(
        self,
        image: Optional[Image] = None,
        write: bool = False,
        partition: Union[int, str, None] = None,
        options: Options = "",
        key_files: Iterable[KeyFile] = (),
        salvage: bool = False,
        auto_mkdir: bool = False,
        fo: Optional[Image] = None,
        target_protocol: Optional[str] = None,
        target_options: Optional[dict[str, Any]] = None,
        **kwargs: Any,
    ) -> None:
        if unknown := sorted(set(kwargs) - _OF_FSSPEC):
            raise TypeError(f"unknown arguments of a steadfs file system: {', '.join(unknown)}")
        super().__init__(**kwargs)
        if write and target_protocol not in _ON_HOST:
            why = f"{target_protocol} gives a copy of the image: what is written there is lost; name the image itself"
            raise ValueError(why)
        if (image is None) == (fo is None):
            raise ValueError("name the image: image='disk.img', or a URL such as steadfs://path::disk.img")
        where = _absolute(image) if image is not None else _on_host(fo, target_protocol, target_options or {})
        if image is not None and target_protocol not in _ON_HOST:
            raise ValueError("target_protocol belongs to fo=, not to image=")
        #: Whether a file that is opened for writing makes the directories around it.
        self.auto_mkdir = auto_mkdir
        #: The open ``steadfs.Volume``.
        keys = tuple(key_files)
        mode = "r+" if write else "r"
        how = (os.getpid(), str(where), mode, partition, option_list(options), keys, salvage)
        with _turn:
            shared = _volumes.get(how)
            if shared is not None:
                # Another thread may be closing it, and has the image in use until then.
                with shared._ending:
                    pass
            if shared is None or shared.closed:
                shared = Volume(
                    where, mode, partition=partition, options=options, key_files=keys, salvage=salvage
                )
                # fsspec closes no instances.
                shared._warns_unclosed = False
                _volumes[how] = shared
        self.volume = shared

    # The class of this class sets both, for copies by pickle or JSON: they open the same image in another working directory.

    @property
    def storage_args(self) -> tuple[Any, ...]:
        return self._storage_args

    @storage_args.setter
    def storage_args(self, args: tuple[Any, ...]) -> None:
        self._storage_args = (*map(_absolute, args[:1]), *args[1:])

    @property
    def storage_options(self) -> dict[str, Any]:
        return self._storage_options

    @storage_options.setter
    def storage_options(self, options: dict[str, Any]) -> None:
        local = options.get("target_protocol") in _ON_HOST
        names = ("image", "fo") if local else ("image",)
        found = {name: _absolute(options[name]) for name in names if options.get(name) is not None}
        self._storage_options = {**options, **found}

    def close(self) -> None:
        """Writes everything and closes the volume, also for instances that share it."""
        self.volume.close()

    def sync(self) -> None:
        """Makes everything durable."""
        self.volume.sync()

    @property
    def fsid(self) -> str:
        return f"steadfs_{self.volume.image}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        if isinstance(path, os.PathLike):
            path = os.fspath(path)
        text = os.fsdecode(path) if isinstance(path, bytes) else str(path)
        if text.startswith("steadfs://"):
            text = text[len("steadfs://") :]
        return "/" + text.strip("/")

    def unstrip_protocol(self, name: str) -> str:
        return "steadfs://" + self._strip_protocol(name).lstrip("/")

    @classmethod
    def _parent(cls, path: str) -> str:
        return cls._strip_protocol(path).rpartition("/")[0] or "/"

    # Listing.

    def _info(self, path: str, found: Stat) -> dict[str, Any]:
        kind = _TYPES.get(_stat.S_IFMT(found.st_mode), "other")
        info = {
            "name": path,
            "size": found.st_size,
            "type": kind,
            "islink": kind == "link",
            "mode": found.st_mode,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "mtime": found.st_mtime,
            "created": found.st_birthtime if found.st_birthtime is not None else found.st_ctime,
        }
        if kind == "link":
            self._follow(path, info)
        return info

    def _follow(self, path: str, info: dict[str, Any]) -> None:
        """A link has the type and size of its target, if it leads to one."""
        info["destination"] = self.volume.readlink(path)
        try:
            target = self.volume.stat(path)
        except OSError:
            return
        info["type"] = _TYPES.get(_stat.S_IFMT(target.st_mode), "other")
        info["size"] = target.st_size

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return self._info(path, self.volume.lstat(path))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        own = self.info(path)
        if own["type"] != "directory":
            return [own] if detail else [path]
        entries = list(self.volume.scandir(path))
        if not detail:
            return [entry.path for entry in entries]
        return [self._listed(entry) for entry in entries]

    def _listed(self, entry: DirEntry) -> dict[str, Any]:
        info = self._info(entry.path, entry.stat(follow_symlinks=False))
        if info["islink"] and info["type"] == "directory":
            # fsspec's walk would enter it, and a link may lead to a directory around it.
            info["type"] = "link"
        return info

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self.volume.exists(self._strip_protocol(path))

    def lexists(self, path: str, **kwargs: Any) -> bool:
        return self.volume.exists(self._strip_protocol(path), follow_symlinks=False)

    def isdir(self, path: str) -> bool:
        return self.volume.is_dir(self._strip_protocol(path))

    def isfile(self, path: str) -> bool:
        return self.volume.is_file(self._strip_protocol(path))

    def islink(self, path: str) -> bool:
        return self.volume.is_symlink(self._strip_protocol(path))

    def created(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.volume.stat(self._strip_protocol(path)).st_mtime, tz=timezone.utc)

    # Changes.

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self.volume.makedirs(self._parent(path), exist_ok=True)
        self.volume.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.volume.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self.volume.rmdir(self._strip_protocol(path))

    def _rm(self, path: str) -> None:
        path = self._strip_protocol(path)
        if self.volume.is_dir(path) and not self.volume.is_symlink(path):
            self.volume.rmdir(path)
        else:
            self.volume.remove(path)

    def rm_file(self, path: str) -> None:
        self.volume.remove(self._strip_protocol(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        """Removes files, and with ``recursive`` directories with all that is in them. Patterns match as in ``glob``."""
        if maxdepth is not None:
            raise ValueError("rm removes whole trees: it takes no maxdepth; find(maxdepth=…) lists what to remove")
        found: list[str] = []
        for one in path if isinstance(path, (list, tuple, set)) else [path]:
            found += self._named(self._strip_protocol(one))
        directories = [one for one in found if self._is_real_directory(one)]
        if directories and not recursive:
            raise IsADirectoryError(errno.EISDIR, "is a directory; recursive=True removes it", directories[0])
        removed: list[str] = []
        for one in sorted(set(found)):
            if any(one.startswith(f"{above.rstrip('/')}/") for above in removed):
                continue
            if self._is_real_directory(one):
                self.volume.rmtree(one)
                removed.append(one)
            else:
                self.volume.remove(one)

    def _is_real_directory(self, path: str) -> bool:
        return self.volume.is_dir(path) and not self.volume.is_symlink(path)

    def _named(self, path: str) -> list[str]:
        """The file of this name, or those that match the pattern."""
        if not glob.has_magic(path) or self.lexists(path):
            return [path]
        found: list[str] = self.glob(path)
        if not found:
            raise FileNotFoundError(errno.ENOENT, "nothing matches the pattern", path)
        return found

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.volume.is_dir(source):
            self.volume.makedirs(target, exist_ok=True)
            return
        if self.volume.exists(target) and self.volume.stat(source).st_ino == self.volume.stat(target).st_ino:
            raise shutil.SameFileError(f"{source!r} and {target!r} are the same file")
        self.volume.makedirs(self._parent(target), exist_ok=True)
        with self.volume.open(source, "rb", 0) as reader, self.volume.open(target, "wb", 0) as writer:
            while data := reader.read(4 << 20):
                writer.write(data)

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if kwargs or glob.has_magic(source):
            super().mv(path1, path2, **kwargs)
            return
        if str(path2).endswith("/") or self.volume.is_dir(target):
            target = f"{target.rstrip('/')}/{source.rpartition('/')[2]}"
        self.volume.makedirs(self._parent(target), exist_ok=True)
        self.volume.rename(source, target)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        self._open(path, "wb" if truncate else "ab").close()
        self.volume.utime(path)

    def link(self, source: str, name: str) -> None:
        self.volume.link(self._strip_protocol(source), self._strip_protocol(name))

    def symlink(self, target: str, link: str) -> None:
        """Makes a link to ``target``, which is kept as it is."""
        self.volume.symlink(target, self._strip_protocol(link))

    def readlink(self, path: str) -> str:
        return self.volume.readlink(self._strip_protocol(path))

    def chmod(self, path: str, mode: int) -> None:
        self.volume.chmod(self._strip_protocol(path), mode)

    # Content.

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Optional[int] = None,
        autocommit: bool = True,
        cache_options: Optional[dict[str, Any]] = None,
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        letters, _ = raw_mode(mode)
        writes = letters != "r"
        if not autocommit and writes and letters not in ("w", "x"):
            raise ValueError(f"a transaction writes whole files (modes w and x); open with {mode!r} outside of it")
        if writes and self.auto_mkdir:
            self.volume.makedirs(self._parent(path), exist_ok=True)
        # fsspec also gives the word "default".
        size = block_size if isinstance(block_size, int) and block_size > 0 else -1
        if not autocommit and writes:
            return self._open_for_commit(path, letters == "x", size if size > 0 else BUFFER_BYTES)
        raw = self.volume._open_raw(path, letters)
        raw._syncs = writes
        return buffered(raw, True, size, None, None, None)

    def _open_for_commit(self, path: str, exclusive: bool, size: int) -> _Committed:
        if exclusive and self.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        raw = self.volume._open_raw(f"{path}.{uuid.uuid4().hex}.part", "x")
        raw._syncs = True
        return _Committed(self, raw, path, exclusive, size)

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None, **kwargs: Any) -> bytes:
        with self.volume.open(self._strip_protocol(path), "rb", 0) as file:
            if start is None and end is None:
                return file.read()
            size = file.stat().st_size
            first, last, _ = slice(start, end).indices(size)
            return file.pread(max(last - first, 0), first)


def _absolute(image: Any) -> str:
    """The absolute path of an image, or its NBD URI."""
    text = os.fsdecode(image)
    return text if _URI.match(text) else os.path.abspath(text)


def _on_host(fo: Any, protocol: Optional[str], options: dict[str, Any]) -> str:
    """The image of a chain of URLs as a file of this machine, or as an NBD URI."""
    if protocol in _ON_HOST:
        from fsspec.implementations.local import LocalFileSystem

        text = os.fsdecode(fo)
        return text if _URI.match(text) else _absolute(LocalFileSystem._strip_protocol(text))
    if protocol not in ("simplecache", "filecache"):
        raise ValueError(
            f"a volume is on a file of this machine, not on {protocol}://; a copy of it is: steadfs://…::simplecache::{protocol}://…"
        )
    import fsspec

    with fsspec.filesystem(protocol, **options).open(fo, "rb") as file:
        return _absolute(file.name)
