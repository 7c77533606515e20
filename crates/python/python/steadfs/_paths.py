"""Paths of a volume."""

from __future__ import annotations

import errno
import os
import pathlib
from typing import TYPE_CHECKING, Any, Iterator, Optional, Union

from ._stat import Stat

if TYPE_CHECKING:
    from ._volume import Volume

#: What stands for a path on a volume.
VolumePath = Union[str, bytes, pathlib.PurePath, "Path"]


def path_bytes(path: VolumePath) -> bytes:
    if isinstance(path, Path):
        path = str(path)
    if isinstance(path, bytes):
        where = path
    elif isinstance(path, (str, pathlib.PurePath)):
        where = os.fsencode(path)
    else:
        raise TypeError(f"a path on a volume is str, bytes, PurePath or steadfs.Path, not {type(path).__name__}")
    if b"\0" in where:
        raise ValueError("embedded null byte in a path")
    return where


class Path:
    """A path of a volume, with the calls of ``pathlib.Path``. It is absolute.

    It has no ``__fspath__``: the built-in ``open`` and ``os`` would take it for a path of the host.
    """

    __slots__ = ("_pure", "volume")

    def __init__(self, volume: Volume, path: VolumePath) -> None:
        self.volume = volume
        self._pure = pathlib.PurePosixPath("/", os.fsdecode(path_bytes(path)))

    def _with(self, pure: pathlib.PurePosixPath) -> Path:
        made = Path.__new__(Path)
        made.volume, made._pure = self.volume, pure
        return made

    # Names, without I/O.

    def __str__(self) -> str:
        return str(self._pure)

    def __bytes__(self) -> bytes:
        return os.fsencode(self._pure)

    def __repr__(self) -> str:
        return f"steadfs.Path({str(self)!r})"

    def __hash__(self) -> int:
        return hash((id(self.volume), self._pure))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and (self.volume, self._pure) == (other.volume, other._pure)

    def __lt__(self, other: Path) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self._pure < other._pure

    def __truediv__(self, part: VolumePath) -> Path:
        return self.joinpath(part)

    def joinpath(self, *parts: VolumePath) -> Path:
        texts = [os.fsdecode(path_bytes(part)) for part in parts]
        return self._with(self._pure.joinpath(*texts))

    @property
    def name(self) -> str:
        return self._pure.name

    @property
    def stem(self) -> str:
        return self._pure.stem

    @property
    def suffix(self) -> str:
        return self._pure.suffix

    @property
    def suffixes(self) -> list[str]:
        return self._pure.suffixes

    @property
    def parts(self) -> tuple[str, ...]:
        return self._pure.parts

    @property
    def parent(self) -> Path:
        return self._with(self._pure.parent)

    @property
    def parents(self) -> list[Path]:
        return [self._with(pure) for pure in self._pure.parents]

    def as_posix(self) -> str:
        return str(self)

    def with_name(self, name: str) -> Path:
        return self._with(self._pure.with_name(name))

    def with_suffix(self, suffix: str) -> Path:
        return self._with(self._pure.with_suffix(suffix))

    def with_stem(self, stem: str) -> Path:
        return self._with(self._pure.with_stem(stem))

    def relative_to(self, other: Union[str, pathlib.PurePath, Path]) -> pathlib.PurePosixPath:
        return self._pure.relative_to(str(other))

    def is_relative_to(self, other: Union[str, pathlib.PurePath, Path]) -> bool:
        return self._pure.is_relative_to(str(other))

    def match(self, pattern: str) -> bool:
        return self._pure.match(pattern)

    # Attributes.

    def stat(self, *, follow_symlinks: bool = True) -> Stat:
        return self.volume.stat(self, follow_symlinks=follow_symlinks)

    def lstat(self) -> Stat:
        return self.volume.lstat(self)

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self.volume.exists(self, follow_symlinks=follow_symlinks)

    def is_dir(self) -> bool:
        return self.volume.is_dir(self)

    def is_file(self) -> bool:
        return self.volume.is_file(self)

    def is_symlink(self) -> bool:
        return self.volume.is_symlink(self)

    def chmod(self, mode: int) -> None:
        self.volume.chmod(self, mode)

    def chown(self, uid: int = -1, gid: int = -1, *, follow_symlinks: bool = True) -> None:
        self.volume.chown(self, uid, gid, follow_symlinks=follow_symlinks)

    def utime(self, times: Optional[tuple[float, float]] = None, *, ns: Optional[tuple[int, int]] = None) -> None:
        self.volume.utime(self, times, ns=ns)

    def xattrs(self, *, follow_symlinks: bool = True) -> dict[str, bytes]:
        return self.volume.xattrs(self, follow_symlinks=follow_symlinks)

    def samefile(self, other: VolumePath) -> bool:
        if isinstance(other, Path) and other.volume is not self.volume:
            return False
        return self.stat().st_ino == self.volume.stat(other).st_ino

    # Content.

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> Any:
        return self.volume.open(self, mode, buffering, encoding, errors, newline)

    def read_bytes(self) -> bytes:
        return self.volume.read_bytes(self)

    def write_bytes(self, data: Any) -> int:
        return self.volume.write_bytes(self, data)

    def read_text(self, encoding: Optional[str] = None, errors: Optional[str] = None) -> str:
        return self.volume.read_text(self, encoding, errors)

    def write_text(self, data: str, encoding: Optional[str] = None, errors: Optional[str] = None) -> int:
        return self.volume.write_text(self, data, encoding, errors)

    def touch(self, mode: int = 0o644, exist_ok: bool = True) -> None:
        try:
            self.volume.open(self, "xb", 0, permissions=mode).close()
        except FileExistsError:
            if not exist_ok:
                raise
            self.utime()

    # Directories.

    def iterdir(self) -> Iterator[Path]:
        entries = self.volume.scandir(self)
        return (self._with(self._pure / entry.name) for entry in entries)

    def walk(
        self, top_down: bool = True, on_error: Any = None, follow_symlinks: bool = False
    ) -> Iterator[tuple[Path, list[str], list[str]]]:
        for top, directories, others in self.volume.walk(self, top_down, on_error, follow_symlinks):
            yield Path(self.volume, top), directories, others

    def glob(self, pattern: str) -> Iterator[Path]:
        """Paths below that match: ``*``, ``?`` and ``[…]`` in names, ``**`` for any directories. Links are not followed by ``**``."""
        parts = pathlib.PurePosixPath(pattern).parts
        if not parts or parts[0] == "/":
            raise ValueError(f"the pattern is relative and not empty; {pattern!r} is not")
        seen: set[str] = set()
        for found in _matches(self, parts):
            if str(found) not in seen:
                seen.add(str(found))
                yield found

    def rglob(self, pattern: str) -> Iterator[Path]:
        return self.glob(f"**/{pattern}")

    def mkdir(self, mode: int = 0o755, parents: bool = False, exist_ok: bool = False) -> None:
        try:
            self.volume.mkdir(self, mode)
        except FileNotFoundError:
            if not parents or self.parent == self:
                raise
            self.parent.mkdir(parents=True, exist_ok=True)
            self.mkdir(mode, exist_ok=exist_ok)
        except OSError:
            # The root cannot be made, and is there.
            if not exist_ok or not self.is_dir():
                raise

    def rmdir(self) -> None:
        self.volume.rmdir(self)

    def rmtree(self) -> None:
        """Removes a directory with all that is in it."""
        self.volume.rmtree(self)

    # Names.

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.volume.remove(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rename(self, target: VolumePath) -> Path:
        """Moves the file; one at the new name is replaced. A relative target is one from the root."""
        moved = Path(self.volume, target)
        if isinstance(target, Path) and target.volume is not self.volume:
            raise OSError(errno.EXDEV, "not on the same volume", str(self), None, str(target))
        self.volume.rename(self, moved)
        return moved

    replace = rename

    def symlink_to(self, target: VolumePath) -> None:
        self.volume.symlink(target, self)

    def hardlink_to(self, target: VolumePath) -> None:
        self.volume.link(target, self)

    def readlink(self) -> pathlib.PurePosixPath:
        return pathlib.PurePosixPath(self.volume.readlink(self))

    # Between the host and the volume.

    def copy_in(self, source: Union[str, bytes, os.PathLike[str]]) -> int:
        """Copies a file or tree of the host here; see ``Volume.copy_in``."""
        return self.volume.copy_in(source, self)

    def copy_out(self, target: Union[str, bytes, os.PathLike[str]]) -> int:
        """Copies it to the host; see ``Volume.copy_out``."""
        return self.volume.copy_out(self, target)


def _matches(where: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    import fnmatch

    first, rest = parts[0], parts[1:]
    if first == "**":
        if not where.is_dir():
            return
        try:
            below = where.volume.scantree(where, on_error=lambda error: None)
        except (NotADirectoryError, FileNotFoundError):
            return
        yield from _matches(where, rest) if rest else [where]
        for entry in below:
            if entry.is_dir(follow_symlinks=False):
                found = Path(where.volume, entry.path)
                yield from _matches(found, rest) if rest else [found]
        return
    if not any(letter in first for letter in "*?["):
        found = where / first
        if found.exists(follow_symlinks=not rest):
            yield from _matches(found, rest) if rest else [found]
        return
    try:
        entries = list(where.volume.scandir(where))
    except (NotADirectoryError, FileNotFoundError):
        return
    for entry in entries:
        if fnmatch.fnmatchcase(entry.name, first):
            found = where / entry.name
            if not rest:
                yield found
            elif entry.is_dir():
                yield from _matches(found, rest)
