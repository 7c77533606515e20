"""Compares a volume with a copy of its files on the host: usage: compare_tree.py IMAGE DIRECTORY

Prints the number of files. Everything is compared that a copy by root keeps: type, permissions, owner, links, size, time of writing,
content, targets, attributes."""

import os
import stat
import sys

import steadfs


def described(path, found, readlink, content, xattrs):
    kind = stat.S_IFMT(found.st_mode)
    words = [path, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns]
    if kind == stat.S_IFREG:
        words += [found.st_nlink, found.st_size, content(path)]
    elif kind == stat.S_IFLNK:
        words += [readlink(path)]
    elif kind != stat.S_IFDIR:
        words += [found.st_rdev]
    return (*words, xattrs(path))


def on_host(directory):
    def content(path):
        with open(directory + path, "rb") as file:
            return file.read()

    def xattrs(path):
        where = directory + path
        names = os.listxattr(where, follow_symlinks=False)
        return {name: os.getxattr(where, name, follow_symlinks=False) for name in names}

    for top, directories, others in os.walk(directory):
        for name in directories + others:
            path = os.path.join(top, name)[len(directory) :]
            found = os.lstat(directory + path)
            yield described(path, found, lambda path: os.readlink(directory + path), content, xattrs)


def on_volume(image):
    with steadfs.open(image) as volume:
        for entry in volume.scantree("/", stat=True):
            yield described(
                entry.path,
                entry.stat(follow_symlinks=False),
                volume.readlink,
                volume.read_bytes,
                lambda path: volume.xattrs(path, follow_symlinks=False),
            )


def main():
    image, directory = sys.argv[1:]
    ours, copy = sorted(on_volume(image), key=str), sorted(on_host(directory), key=str)
    for one, other in zip(ours, copy):
        if one != other:
            sys.exit(f"differ:\n{one!r:.500}\n{other!r:.500}")
    if len(ours) != len(copy):
        sys.exit(f"{len(ours)} files on the volume, {len(copy)} in the copy")
    print(len(ours))


main()
