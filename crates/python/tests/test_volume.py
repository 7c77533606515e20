"""Volumes, paths and files. Run by unittest, with the extension beside the package."""

import contextlib
import errno
import gc
import io
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import threading
import time
import unittest
import warnings
import weakref
import zipfile

import steadfs

PACKAGE = str(pathlib.Path(steadfs.__file__).parent.parent)


class OnImage(unittest.TestCase):
    """Each test has an image of each kind."""

    KINDS = ("ext4", "f2fs")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def image(self, kind):
        image = self.folder / f"{kind}.image"
        steadfs.format(image, "64M", kind)
        return image

    def images(self):
        for kind in self.KINDS:
            image = self.image(kind)
            yield image
            self.assertEqual(steadfs.check(image).issues, [], kind)

    def python(self, code, *words):
        """Runs a program that has the package."""
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, "-W", "default", "-c", textwrap.dedent(code), *map(str, words)],
            env=environment, capture_output=True, text=True, timeout=60,
        )


class Paths(OnImage):
    def test_files_and_directories(self):
        for image in self.images():
            with steadfs.open(image, "r+") as volume:
                (volume / "a/b").mkdir(parents=True)
                with self.assertRaises(FileExistsError):
                    (volume / "a").mkdir()
                (volume / "a").mkdir(exist_ok=True)
                path = volume / "a" / "b" / "text"
                self.assertEqual(path.write_text("zwölf\n", encoding="utf-8"), 6)
                self.assertEqual(path.read_bytes(), "zwölf\n".encode())
                self.assertEqual(path.stat().st_size, 7)
                self.assertTrue(path.is_file() and path.parent.is_dir() and not path.is_symlink())
                moved = path.rename("/a/c.txt")
                self.assertEqual((moved.name, moved.stem, moved.suffix), ("c.txt", "c", ".txt"))
                self.assertFalse(path.exists())
                moved.parent.joinpath("d.txt").hardlink_to(moved)
                self.assertTrue(moved.samefile("/a/d.txt"))
                self.assertEqual(moved.stat().st_nlink, 2)
                (volume / "link").symlink_to("a/c.txt")
                self.assertEqual(str((volume / "link").readlink()), "a/c.txt")
                self.assertEqual((volume / "link").read_text(), "zwölf\n")
                self.assertTrue((volume / "link").lstat().is_symlink())
                self.assertEqual(sorted(volume.listdir("a")), ["b", "c.txt", "d.txt"])
                found = [str(path) for path in volume.root.glob("a/*.txt")]
                self.assertEqual(sorted(found), ["/a/c.txt", "/a/d.txt"])
                self.assertIn(volume / "a/c.txt", set(volume.root.rglob("c*")))
                self.assertEqual(list(volume.root.glob("a/c.txt/**")) + list(volume.root.glob("none/**/x")), [])
                with self.assertRaises(OSError) as raised:
                    (volume / "a").rmdir()
                self.assertEqual((raised.exception.errno, raised.exception.filename), (39, "/a"))
                (volume / "a").rmtree()
                (volume / "gone").unlink(missing_ok=True)
                self.assertEqual([path.name for path in volume.root.iterdir() if path.name != "lost+found"], ["link"])

    def test_attributes(self):
        for image in self.images():
            with steadfs.open(image, "r+") as volume:
                volume.write_bytes("file", b"x")
                volume.chmod("file", 0o4751)
                volume.chown("file", 1000, 2000)
                volume.chown("file", gid=3000)
                times = (1_700_000_000_123_456_789, -1_000_000_001)
                volume.utime("file", ns=times)
                volume.set_xattr("file", "user.comment", b"\0\xff")
                found = volume.stat("file")
                # The order of os.stat_result is not that of these fields.
                self.assertNotIsInstance(found, tuple)
                self.assertEqual((found.st_uid, found.st_gid), (1000, 3000))
                self.assertEqual(stat.S_IMODE(found.st_mode) & 0o777, 0o751)
                self.assertEqual((found.st_atime_ns, found.st_mtime_ns), times)
                self.assertEqual(volume.xattrs("file"), {"user.comment": b"\0\xff"})
                volume.remove_xattr("file", "user.comment")
                self.assertEqual(volume.xattrs("file"), {})
                volume.symlink("file", "link")
                volume.chown("link", 7, 7, follow_symlinks=False)
                self.assertEqual((volume.lstat("link").st_uid, volume.stat("link").st_uid), (7, 1000))
                volume.mknod("null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
                self.assertTrue(stat.S_ISCHR(volume.stat("null").st_mode))
                self.assertEqual(volume.stat("null").st_rdev, os.makedev(1, 3))
                usage = volume.usage()
                self.assertTrue(0 < usage.free < usage.total <= 64 << 20)

    def test_names_that_are_not_utf8(self):
        for image in self.images():
            with steadfs.open(image, "r+") as volume:
                name = b"caf\xe9"
                volume.write_bytes(name, b"1")
                text = os.fsdecode(name)
                self.assertEqual([entry for entry in volume.listdir() if entry != "lost+found"], [text])
                self.assertEqual(volume.read_bytes(text), b"1")
                self.assertEqual(bytes(volume.path(text)), b"/" + name)
                with self.assertRaises(FileNotFoundError) as raised:
                    volume.stat(b"\xff")
                self.assertEqual(os.fsencode(raised.exception.filename), b"\xff")
                attribute = os.fsdecode(b"user.caf\xe9")
                volume.set_xattr(text, attribute, b"2")
                self.assertEqual(volume.xattrs(text), {attribute: b"2"})
                volume.remove_xattr(text, attribute)
                self.assertEqual(volume.xattrs(text), {})
                with self.assertRaises(ValueError):
                    volume.stat("a\0b")
                with self.assertRaises(TypeError):
                    volume.stat(3)

    def test_a_path_is_not_one_of_the_host(self):
        image = self.image("ext4")
        with steadfs.open(image) as volume, self.assertRaises(TypeError):
            open(volume / "etc")

    def test_errors_have_their_numbers(self):
        for image in self.images():
            with steadfs.open(image, "r+") as volume:
                volume.mkdir("dir")
                volume.write_bytes("file", b"")
                for kind, call in [
                    (IsADirectoryError, lambda: volume.open("dir")),
                    (NotADirectoryError, lambda: volume.listdir("file")),
                    (NotADirectoryError, lambda: volume.stat("file/below")),
                    (FileExistsError, lambda: volume.open("file", "x")),
                    (FileNotFoundError, lambda: volume.remove("none")),
                    (IsADirectoryError, lambda: volume.remove("dir")),
                    (OSError, lambda: volume.mkdir("n" * 256)),
                    (ValueError, lambda: volume.open("file", "q")),
                ]:
                    with self.assertRaises(kind):
                        call()
            with steadfs.open(image) as volume, self.assertRaises(OSError) as raised:
                volume.mkdir("other")
            self.assertEqual(raised.exception.errno, 30)

    def test_a_loop_of_links_is_one(self):
        for image in self.images():
            with steadfs.open(image, "r+") as volume:
                volume.symlink("/loop", "/loop")
                for call in [lambda: volume.stat("loop"), lambda: volume.write_bytes("loop", b"")]:
                    with self.assertRaises(OSError) as raised:
                        call()
                    self.assertEqual(raised.exception.errno, errno.ELOOP)

    def test_a_walk_of_everything(self):
        for image in self.images():
            with steadfs.open(image, "r+") as volume:
                for number in range(600):
                    volume.write_bytes(f"{number:03}", b"x" * number)
                volume.makedirs("deep/er/est")
                volume.symlink("/", "deep/loop")
                entries = {entry.path: entry for entry in volume.scantree("/", stat=True)}
                self.assertEqual(entries["/599"].stat().st_size, 599)
                self.assertTrue(entries["/deep/loop"].is_symlink() and entries["/deep/loop"].is_dir())
                walked = {
                    f"{top.rstrip('/')}/{name}"
                    for top, directories, others in volume.walk() for name in directories + others
                }
                self.assertEqual(walked, set(entries))
                tops = [top for top, _, _ in volume.walk("deep", topdown=False)]
                self.assertEqual(tops, ["deep/er/est", "deep/er", "deep"])
                pruned = []
                for top, directories, _ in volume.walk("/deep"):
                    pruned.append(top)
                    directories.clear()
                self.assertEqual(pruned, ["/deep"])
                # A loop of links ends.
                self.assertLess(len(list(volume.walk("/", follow_symlinks=True))), 10)


class Files(OnImage):
    def test_modes(self):
        for image in self.images():
            with steadfs.open(image, "r+") as volume:
                with volume.open("file", "w", newline="\r\n") as file:
                    file.write("one\ntwo\n")
                with volume.open("file") as file:
                    self.assertEqual(list(file), ["one\n", "two\n"])
                with volume.open("file", "ab") as file:
                    file.write(b"three")
                    self.assertEqual(file.tell(), 15)
                with volume.open("file", "r+b") as file:
                    file.seek(-5, os.SEEK_END)
                    file.write(b"T")
                    file.seek(0)
                    self.assertEqual(file.read(), b"one\r\ntwo\r\nThree")
                    file.truncate(3)
                self.assertEqual(volume.read_bytes("file"), b"one")
                with volume.open("file", "rb", 0) as file:
                    self.assertIsInstance(file, io.RawIOBase)
                    buffer = bytearray(2)
                    self.assertEqual((file.readinto(buffer), buffer), (2, b"on"))
                    self.assertEqual((file.pread(2, 1), file.tell()), (b"ne", 2))
                    with self.assertRaises(io.UnsupportedOperation):
                        file.write(b"x")
                    with self.assertRaises(OSError):
                        file.seek(-1)
                with self.assertRaises(ValueError):
                    file.read()

    def test_archives_work_on_files(self):
        for image in self.images():
            with steadfs.open(image, "r+") as volume:
                with volume.open("a.zip", "w+b") as file, zipfile.ZipFile(file, "w") as archive:
                    archive.writestr("inner", b"z" * 100_000)
                with volume.open("a.zip", "rb") as file, zipfile.ZipFile(file) as archive:
                    self.assertEqual(archive.read("inner"), b"z" * 100_000)
                with volume.open("a.tar", "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                    archive.add(__file__, "test.py")
                with volume.open("a.tar", "rb") as file, tarfile.open(fileobj=file) as archive:
                    self.assertEqual(archive.extractfile("test.py").read(), pathlib.Path(__file__).read_bytes())

    def test_holes(self):
        for image in self.images():
            with steadfs.open(image, "r+") as volume, volume.open("sparse", "w+b", 0) as file:
                file.seek(8 << 20)
                file.write(b"end")
                self.assertEqual(file.seek(0, os.SEEK_DATA), 8 << 20)
                self.assertEqual(file.seek(0, os.SEEK_HOLE), 0)
                self.assertLess(file.stat().st_blocks * 512, 1 << 20)
                with self.assertRaises(OSError) as raised:
                    file.seek(9 << 20, os.SEEK_DATA)
                self.assertEqual(raised.exception.errno, 6)
                file.pwrite(b"x" * 65536, 0)
                file.punch_hole(0, 65536)
                self.assertEqual(file.pread(65536, 0), bytes(65536))
                file.sync()

    def test_arguments_are_checked_before_a_file_is_truncated(self):
        with steadfs.open(self.image("ext4"), "r+") as volume:
            volume.write_bytes("file", b"kept")
            for kind, call in [
                (ValueError, lambda: volume.open("file", "wb", encoding="utf-8")),
                (ValueError, lambda: volume.open("file", "w", 0)),
                (ValueError, lambda: volume.open("file", "w", newline="x")),
                (LookupError, lambda: volume.open("file", "w", encoding="no such one")),
                (LookupError, lambda: volume.open("file", "w", errors="no such one")),
                (TypeError, lambda: volume.open("file", "wb", "1")),
                (TypeError, lambda: volume.write_bytes("file", "text")),
                (TypeError, lambda: volume.write_text("file", 1)),
            ]:
                with self.assertRaises(kind):
                    call()
                self.assertEqual(volume.read_bytes("file"), b"kept")

    def test_offsets_out_of_range_are_invalid_arguments(self):
        with steadfs.open(self.image("ext4"), "r+") as volume, volume.open("file", "w+b", 0) as file:
            for wrong in (-1, 1 << 63, 1 << 64):
                for call in (
                    lambda: file.pread(1, wrong),
                    lambda: file.pwrite(b"x", wrong),
                    lambda: file.seek(wrong),
                    lambda: file.truncate(wrong),
                    lambda: file.allocate(wrong, 1),
                    lambda: file.punch_hole(0, wrong),
                ):
                    with self.assertRaises(OSError) as raised:
                        call()
                    self.assertEqual(raised.exception.errno, errno.EINVAL)
            file.write(b"all")
            self.assertEqual(file.pread(1 << 64, 0), b"all")

    def test_a_signal_handler_may_use_the_file_that_it_interrupts(self):
        with steadfs.open(self.image("ext4"), "r+") as volume, volume.open("file", "w+b", 0) as file:
            file.write(b"data")
            with file._turn:
                done = threading.Timer(10, os._exit, (1,))
                done.start()
                self.assertEqual(file.seek(0), 0)
                done.cancel()

    def test_unlinked_files_stay_readable(self):
        for image in self.images():
            with steadfs.open(image, "r+") as volume:
                volume.write_bytes("file", b"content")
                with volume.open("file", "rb", 0) as file:
                    volume.remove("file")
                    self.assertEqual(file.read(), b"content")

    def test_copies_between_the_host_and_a_volume(self):
        tree = self.folder / "tree"
        (tree / "sub").mkdir(parents=True)
        (tree / "sub" / "file").write_bytes(os.urandom(300_000))
        (tree / "link").symlink_to("sub/file")
        os.link(tree / "sub" / "file", tree / "second")
        for image in self.images():
            with steadfs.open(image, "r+") as volume:
                self.assertEqual(volume.copy_in(tree, "/tree"), 5)
                self.assertEqual(volume.stat("/tree/second").st_nlink, 2)
                with self.assertRaises(FileExistsError):
                    volume.copy_in(tree / "second", "/tree/second")
                back = self.folder / f"back-{volume.kind}"
                (volume / "tree").copy_out(back)
                self.assertEqual((back / "link").read_bytes(), (tree / "second").read_bytes())
                with self.assertRaises(OSError):
                    volume.copy_out("/tree", self.folder / "less", max_bytes=1000)


class Ends(OnImage):
    """How volumes end."""

    def test_use_after_close(self):
        for image in self.images():
            volume = steadfs.open(image, "r+")
            file = volume.open("file", "w")
            file.write("buffered")
            path, entries = volume / "file", volume.scandir()
            volume.close()
            volume.close()
            self.assertTrue(volume.closed and file.closed)
            for call in (path.stat, path.read_text, lambda: next(entries), volume.sync, volume.usage, volume.__enter__):
                with self.assertRaises((ValueError, OSError)):
                    call()
            with steadfs.open(image) as volume:
                self.assertEqual(volume.read_text("file"), "buffered")

    def test_an_exception_in_the_block_keeps_what_was_done(self):
        for image in self.images():
            with self.assertRaises(ZeroDivisionError), steadfs.open(image, "r+") as volume:
                volume.write_bytes("file", b"done")
                1 / 0
            with steadfs.open(image) as volume:
                self.assertEqual(volume.read_bytes("file"), b"done")

    def test_staged_changes_are_all_or_none(self):
        for image in self.images():
            with self.assertRaises(ZeroDivisionError), steadfs.open(image, "r+", staged=True) as volume:
                volume.write_bytes("file", b"lost")
                1 / 0
            before = image.read_bytes()
            with steadfs.open(image, "r+", staged=True) as volume:
                volume.mkdir("dir")
                file = volume.open("dir/file", "w")
                file.write("kept")
                self.assertEqual(image.read_bytes(), before)
            with steadfs.open(image) as volume:
                self.assertFalse(volume.exists("file"))
                self.assertEqual(volume.read_text("dir/file"), "kept")

    def test_reading_writes_nothing(self):
        for image in self.images():
            before = image.read_bytes()
            with steadfs.open(image) as volume:
                list(volume.scantree())
            self.assertEqual(image.read_bytes(), before)

    def test_a_volume_that_is_dropped_is_closed_with_a_warning(self):
        for image in self.images():
            volume = steadfs.open(image, "r+")
            volume.write_bytes("file", b"dropped")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                del volume
                gc.collect()
            self.assertEqual([warning.category for warning in caught], [ResourceWarning])
            with steadfs.open(image) as volume:
                self.assertEqual(volume.read_bytes("file"), b"dropped")

    def test_the_end_of_the_interpreter_closes_volumes(self):
        for image in self.images():
            done = self.python(
                """
                import sys, steadfs
                volume = steadfs.open(sys.argv[1], "r+")
                file = volume.open("file", "w")
                file.write("at exit")
                """,
                image,
            )
            self.assertEqual((done.returncode, done.stdout), (0, ""))
            self.assertIn("ResourceWarning: unclosed volume", done.stderr)
            with steadfs.open(image) as volume:
                self.assertEqual(volume.read_text("file"), "at exit")

    def test_a_staged_volume_that_is_dropped_is_discarded(self):
        for image in self.images():
            before = image.read_bytes()
            volume = steadfs.open(image, "r+", staged=True)
            volume.write_bytes("file", b"half")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                del volume
                gc.collect()
            self.assertEqual([warning.category for warning in caught], [ResourceWarning])
            self.assertIn("discarded", str(caught[0].message))
            self.assertEqual(image.read_bytes(), before)
            done = self.python(
                """
                import sys, steadfs
                volume = steadfs.open(sys.argv[1], "r+", staged=True)
                volume.write_bytes("file", b"half")
                """,
                image,
            )
            self.assertIn("its changes are discarded", done.stderr)
            self.assertEqual(image.read_bytes(), before)

    def test_a_staged_volume_is_not_applied_without_a_buffer(self):
        for image in self.images():
            before = image.read_bytes()
            for dropped in (False, True):
                volume = steadfs.open(image, "r+", staged=True)
                volume.write_bytes("other", b"half")
                file = volume.open("file", "w")
                file.write("lost")
                # Its buffer cannot be flushed.
                file.buffer.raw._file.close()
                if dropped:
                    del file
                    with self.assertRaises(ValueError):
                        volume.sync()
                with self.assertRaises(ValueError):
                    volume.close()
                self.assertTrue(volume.closed)
                self.assertEqual(image.read_bytes(), before)

    def test_a_staged_volume_that_is_busy_can_be_closed_again(self):
        class Busy:
            def __getattr__(self, name):
                return getattr(native, name)

            def close(self):
                raise OSError(errno.EBUSY, "injected")

        for image in self.images():
            volume = steadfs.open(image, "r+", staged=True)
            file = volume.open("file", "w")
            file.write("kept")
            native, volume._native = volume._native, Busy()
            with self.assertRaises(OSError):
                volume.close()
            self.assertTrue(file.closed and not volume.closed)
            volume._native = native
            volume.write_bytes("more", b"1")
            volume.close()
            with steadfs.open(image) as volume:
                self.assertEqual((volume.read_text("file"), volume.read_bytes("more")), ("kept", b"1"))

    def test_a_staged_close_that_is_interrupted_applies_nothing(self):
        class Interrupted(weakref.WeakSet):
            def __iter__(self):
                raise KeyboardInterrupt

        for image in self.images():
            before = image.read_bytes()
            volume = steadfs.open(image, "r+", staged=True)
            volume.write_bytes("file", b"half")
            volume._files = Interrupted()
            with self.assertRaises(KeyboardInterrupt):
                volume.close()
            self.assertTrue(volume.closed)
            self.assertEqual(image.read_bytes(), before)

    def test_a_file_that_cannot_be_closed_does_not_keep_the_volume_open(self):
        for image in self.images():
            volume = steadfs.open(image, "r+")
            files = [volume.open(name, "wb") for name in ("one", "two", "three")]
            for file in files:
                file.write(b"data")

            class Broken:
                _level, _detached, closed = 1, False, False

                def close(self):
                    raise KeyboardInterrupt

            broken = Broken()
            volume._files.add(broken)
            with self.assertRaises(KeyboardInterrupt):
                volume.close()
            self.assertTrue(volume.closed)
            with steadfs.open(image) as volume:
                self.assertEqual([volume.read_bytes(name) for name in ("one", "two", "three")], [b"data"] * 3)

    def test_files_are_opened_while_a_volume_is_synced_or_closed(self):
        class Files(weakref.WeakSet):
            """Another thread opens a file during each iteration."""

            def __iter__(self):
                for number, file in enumerate(super().__iter__()):
                    if number == 0:
                        threads.append(threading.Thread(target=work))
                        threads[-1].start()
                        threads[-1].join(0.1)
                    yield file

        def work():
            try:
                kept.append(volume.open("other", "ab"))
            except ValueError as error:
                refused.append(error)

        volume = steadfs.open(self.image("ext4"), "r+")
        threads, refused = [], []
        volume._files = Files()
        kept = [volume.open(str(number), "wb") for number in range(5)]
        volume.sync()
        threads[0].join()
        self.assertEqual((len(kept), refused), (6, []))
        volume.close()
        threads[1].join()
        # It is not opened without being closed.
        self.assertEqual((len(kept), len(refused)), (6, 1))
        self.assertTrue(volume.closed and all(file.closed for file in kept))

    def test_a_second_close_waits_for_the_first(self):
        volume = steadfs.open(self.image("ext4"), "r+")
        found = []
        with volume._ending:
            thread = threading.Thread(target=lambda: (volume.close(), found.append(volume.closed)))
            thread.start()
            time.sleep(0.05)
            self.assertEqual(found, [])
        thread.join()
        self.assertEqual(found, [True])

    def test_warnings_that_are_errors_do_not_keep_a_volume_open(self):
        for image in self.images():
            done = self.python(
                """
                import gc, sys, warnings, steadfs
                warnings.simplefilter("error")
                volume = steadfs.open(sys.argv[1], "r+")
                volume.write_bytes("dropped", b"1")
                del volume
                gc.collect()
                volume = steadfs.open(sys.argv[1], "r+")
                file = volume.open("exit", "w")
                file.write("2")
                """,
                image,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            with steadfs.open(image) as volume:
                self.assertEqual((volume.read_bytes("dropped"), volume.read_bytes("exit")), (b"1", b"2"))

    def test_garbage_cycles_lose_no_data(self):
        class Holder:
            pass

        for image in self.images():
            for mode, with_volume in [("w", False), ("wb", False), ("w", True), ("wb", True), ("w+b", True)]:
                volume = steadfs.open(image, "r+")
                holder = Holder()
                holder.own = holder
                holder.file = volume.open("file", mode)
                text = f"in a cycle: {mode} {with_volume}"
                holder.file.write(text if mode == "w" else text.encode())
                if with_volume:
                    holder.volume = volume
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    del holder
                    if with_volume:
                        del volume
                    gc.collect()
                if not with_volume:
                    volume.close()
                with steadfs.open(image) as volume:
                    self.assertEqual(volume.read_text("file"), text)

    def test_a_buffer_that_is_detached_from_its_text_is_written(self):
        for image in self.images():
            with steadfs.open(image, "r+") as volume:
                text = volume.open("file", "w")
                buffer = text.detach()
                buffer.write(b"below")
                dropped = volume.open("dropped", "w").detach()
                dropped.write(b"too")
                del dropped
                self.assertEqual(volume.read_bytes("dropped"), b"too")
            with steadfs.open(image) as volume:
                self.assertEqual(volume.read_bytes("file"), b"below")

    def test_a_file_that_is_dropped_is_closed_at_once(self):
        with steadfs.open(self.image("ext4"), "r+") as volume:
            for mode in ("w", "wb"):
                volume.open("file", mode).write("data" if mode == "w" else b"data")
                self.assertEqual((volume.read_bytes("file"), volume._open_count), (b"data", 0))

    def test_a_killed_program_is_a_power_cut(self):
        for image in self.images():
            done = self.python(
                """
                import os, signal, sys, steadfs
                volume = steadfs.open(sys.argv[1], "r+")
                with volume.open("durable", "wb", 0) as file:
                    file.write(b"synced")
                    file.sync()
                os.kill(os.getpid(), signal.SIGKILL)
                """,
                image,
            )
            self.assertEqual(done.returncode, -signal.SIGKILL)
            with steadfs.open(image) as volume:
                self.assertEqual(volume.read_bytes("durable"), b"synced")
            with steadfs.open(image, "r+") as volume:
                self.assertEqual(volume.read_bytes("durable"), b"synced")

    def test_a_forked_child_uses_nothing_of_its_parent(self):
        for image in self.images():
            done = self.python(
                """
                import os, sys, warnings, steadfs
                # Python's own warning about forks of processes with threads.
                warnings.simplefilter("ignore", DeprecationWarning)
                volume = steadfs.open(sys.argv[1], "r+")
                file = volume.open("file", "w")
                file.write("of the parent")
                if os.fork() == 0:
                    # Newer versions of Python report that the copy of the buffer is not written.
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                    for call in (volume.close, volume.sync, volume.listdir, file.flush):
                        try:
                            call()
                        except RuntimeError as error:
                            assert "forked" in str(error), error
                        else:
                            os._exit(3)
                    del volume, file
                    sys.exit(7)
                assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
                volume.close()
                with steadfs.open(sys.argv[1]) as volume:
                    assert volume.read_text("file") == "of the parent"
                """,
                image,
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_one_writer(self):
        for image in self.images():
            with steadfs.open(image, "r+"), self.assertRaises(OSError) as raised:
                steadfs.open(image, "r+")
            self.assertEqual((raised.exception.errno, raised.exception.filename), (16, str(image)))

    def test_threads(self):
        for image in self.images():
            with steadfs.open(image, "r+") as volume:
                problems = []

                def work(number):
                    try:
                        for turn in range(20):
                            path = volume / f"{number}-{turn}"
                            path.write_bytes(bytes([number]) * 50_000)
                            assert path.read_bytes() == bytes([number]) * 50_000
                            log.write(f"{number}\n".encode())
                            assert len(shared.pread(1000, number * 1000)) == 1000
                            for _ in range(10):
                                taken.append(shared.read(100))
                    except BaseException as error:
                        problems.append(error)

                volume.write_bytes("shared", bytes(1_000_000))
                taken = []
                with volume.open("log", "ab", 0) as log, volume.open("shared", "rb", 0) as shared:
                    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
                    self.assertEqual(shared.tell(), 8 * 20 * 10 * 100)
                self.assertEqual(problems, [])
                self.assertEqual(sorted(volume.read_text("log").split()), sorted("01234567" * 20))
                self.assertEqual({len(part) for part in taken}, {100})

    def test_a_volume_is_closed_while_others_use_it(self):
        for image in self.images():
            volume = steadfs.open(image, "r+")
            volume.write_bytes("file", bytes(1 << 20))
            ended = []

            def work():
                try:
                    while True:
                        volume.read_bytes("file")
                        volume.write_bytes("other", b"x" * 10_000)
                except (ValueError, OSError):
                    ended.append(True)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            volume.close()
            for thread in threads:
                thread.join(30)
            self.assertEqual(ended, [True] * 4)

    def test_others_run_during_a_call(self):
        image = self.image("ext4")
        with steadfs.open(image, "r+") as volume:
            turns, stop = [0], threading.Event()

            def count():
                while not stop.is_set():
                    turns[0] += 1
                    time.sleep(0)

            counter = threading.Thread(target=count)
            counter.start()
            interval = sys.getswitchinterval()
            # Only a call that gives up the interpreter's lock lets the other thread run.
            sys.setswitchinterval(100)
            try:
                before = turns[0]
                for _ in range(20):
                    volume.sync()
                self.assertGreater(turns[0], before)
            finally:
                sys.setswitchinterval(interval)
                stop.set()
                counter.join()

    def test_a_signal_ends_a_copy(self):
        tree = self.folder / "tree"
        tree.mkdir()
        for number in range(300):
            (tree / str(number)).write_bytes(b"")

        def stop(number, frame):
            raise KeyboardInterrupt

        image = self.image("ext4")
        with steadfs.open(image, "r+") as volume:
            before = signal.signal(signal.SIGALRM, stop)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.01)
                with self.assertRaises(KeyboardInterrupt):
                    for turn in range(100):
                        volume.copy_in(tree, f"/tree{turn}")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)

    def test_a_signal_ends_a_check_and_a_format(self):
        came = []

        def stop(number, frame):
            came.append(number)
            # One call gets several signals only if it looks for them itself.
            if len(came) == 3:
                raise KeyboardInterrupt

        def stopped(call, *words):
            came.clear()
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
            try:
                with self.assertRaises(KeyboardInterrupt):
                    call(*words)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

        image = self.folder / "image"
        before = signal.signal(signal.SIGALRM, stop)
        try:
            stopped(steadfs.format, image, "4T", "ext4")
            self.assertFalse(image.exists())
            steadfs.format(image, "1T", "ext4")
            stopped(steadfs.check, image)
        finally:
            signal.signal(signal.SIGALRM, before)


class Images(OnImage):
    def test_what_is_no_volume(self):
        image = self.folder / "zeros"
        image.write_bytes(bytes(1 << 20))
        with self.assertRaises(steadfs.NoVolumeError) as raised:
            steadfs.open(image)
        self.assertIn("only zeros", str(raised.exception))
        with self.assertRaises(FileNotFoundError):
            steadfs.open(self.folder / "none")
        with self.assertRaises(FileNotFoundError):
            steadfs.probe(self.folder / "none")

    def test_format_replaces_nothing_by_itself(self):
        image = self.image("f2fs")
        with self.assertRaises(FileExistsError) as raised:
            steadfs.format(image, "64M")
        self.assertIn("f2fs", str(raised.exception))
        steadfs.format(image, kind="ext2", overwrite=True, label="new", block_size=1024)
        self.assertEqual(steadfs.probe(image), "ext2")
        for wrong in ({"kind": "xfs"}, {"kind": "f2fs", "inodes": 5}, {"size": "many"}, {"uuid": "x"}):
            with self.assertRaises(ValueError):
                steadfs.format(self.folder / "new", **{"size": "64M", **wrong})
        self.assertFalse((self.folder / "new").exists())

    def test_options(self):
        image = self.image("ext4")
        for wrong in ("no_such_option", "partition=1,offset=512"):
            with self.assertRaises(ValueError):
                steadfs.open(image, options=wrong)
        with self.assertRaises(ValueError):
            steadfs.open(image, "r+", options="ro")
        for words in ("noload,cache_size=8M", ["noload", "cache_size=8M"], {"noload": None, "cache_size": "8M"}):
            steadfs.open(image, options=words).close()
        with self.assertRaises(ValueError):
            steadfs.open(image, "w")

    def test_partitions(self):
        disk = self.folder / "disk"
        with open(disk, "wb") as file:
            file.truncate(96 << 20)
        table = "label: gpt\nstart=2048, size=65536, name=boot\nstart=67584, size=120000, name=data, with a comma\n"
        subprocess.run(["sfdisk", "-q", disk], input=table.replace("data, with a comma", '"data, 2"'), text=True, check=True)
        for kind, which in (("ext2", 1), ("f2fs", "data, 2")):
            steadfs.format(disk, kind=kind, partition=which)
        with self.assertRaises(FileExistsError):
            steadfs.format(disk, partition=2)
        found = steadfs.partitions(disk)
        self.assertEqual((found.scheme, found.flaw), ("GPT", None))
        self.assertEqual([(part.name, part.holds, part.start) for part in found.partitions],
                         [("boot", "ext2", 1 << 20), ("data, 2", "f2fs", 33 << 20)])
        with steadfs.open(disk, "r+", partition="data, 2") as volume:
            volume.write_bytes("file", b"x")
        with steadfs.open(disk, partition=2) as volume:
            self.assertEqual((volume.kind, volume.read_bytes("file")), ("f2fs", b"x"))
        self.assertTrue(steadfs.check(disk, partition=2).is_clean)
        with self.assertRaises(steadfs.NoVolumeError):
            steadfs.open(disk)
        with self.assertRaises(FileNotFoundError):
            steadfs.open(disk, partition=9)

    def test_corrupt_volumes(self):
        image = self.image("ext4")
        with open(image, "r+b") as file:
            # The first group descriptor.
            file.seek(steadfs.open(image).block_size * (2 if steadfs.open(image).block_size == 1024 else 1))
            file.write(b"\xff" * 32)
        self.assertFalse(steadfs.check(image).is_clean)
        with self.assertRaises(steadfs.CorruptError) as raised:
            steadfs.open(image, "r+")
        self.assertEqual(raised.exception.errno, 117)


class Nbd(OnImage):
    """Exports of nbdkit, where there is one."""

    @contextlib.contextmanager
    def export(self, image, *words):
        socket = self.folder / "socket"
        with contextlib.suppress(FileNotFoundError):
            socket.unlink()
        server = subprocess.Popen(["nbdkit", "-f", "-U", socket, *words[:1], "file", image, *words[1:]])
        try:
            while not socket.exists() and server.poll() is None:
                pass
            yield f"nbd+unix:///?socket={socket}"
        finally:
            server.kill()
            server.wait()

    def test_a_volume_on_an_export(self):
        for image in self.images():
            with self.export(image) as uri:
                with steadfs.open(uri, "r+") as volume:
                    volume.write_bytes("file", b"far")
                with steadfs.open(uri) as volume:
                    self.assertEqual(volume.read_bytes("file"), b"far")

    def test_a_write_error_at_the_end_is_raised(self):
        for kind in self.KINDS:
            with self.subTest(kind=kind):
                image, broken = self.image(kind), self.folder / "broken"
                errors = ("error-pwrite-rate=100%", f"error-file={broken}", "error=EIO")
                with self.export(image, "--filter=error", *errors) as uri:
                    volume = steadfs.open(uri, "r+")
                    file = volume.open("file", "w")
                    file.write("lost")
                    broken.touch()
                    with self.assertRaises(OSError):
                        volume.close()
                    self.assertTrue(volume.closed)
                    broken.unlink()
                    with self.assertRaises(OSError), steadfs.open(uri, "r+") as volume:
                        volume.write_bytes("file", b"lost, too")
                        broken.touch()
                    broken.unlink()


if __name__ == "__main__":
    unittest.main()
