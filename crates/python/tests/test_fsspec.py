"""The file system of fsspec; ``test_abstract.py`` has fsspec's own tests."""

import errno
import os
import pathlib
import pickle
import shutil
import tempfile
import threading
import unittest
import warnings

import fsspec

import steadfs
from steadfs.fsspec import SteadfsFileSystem, _absolute

fsspec.register_implementation("steadfs", SteadfsFileSystem, clobber=True)


class OfFsspec(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.image = str(self.folder / "disk.image")
        steadfs.format(self.image, "64M", "f2fs", label="here")
        self.fs = SteadfsFileSystem(self.image, write=True)
        self.addCleanup(self.fs.close)

    def test_files(self):
        fs = self.fs
        fs.makedirs("/dir/sub")
        fs.pipe({"/dir/a": b"aaa", "steadfs://dir/sub/b": b"bb"})
        self.assertEqual(fs.cat_file("/dir/a", 1, -1), b"a")
        self.assertEqual(fs.cat(["/dir/a", "/dir/sub/b"]), {"/dir/a": b"aaa", "/dir/sub/b": b"bb"})
        self.assertEqual(fs.find("/"), ["/dir/a", "/dir/sub/b"])
        self.assertEqual(fs.du("/dir"), 5)
        self.assertEqual(fs.glob("/dir/**/b"), ["/dir/sub/b"])
        self.assertEqual(sorted(fs.ls("/dir", detail=False)), ["/dir/a", "/dir/sub"])
        info = fs.info("/dir/a")
        self.assertEqual((info["name"], info["type"], info["size"]), ("/dir/a", "file", 3))
        fs.symlink("a", "/dir/link")
        self.assertEqual(fs.info("/dir/link")["destination"], "a")
        self.assertEqual(fs.info("/dir/link")["size"], 3)
        fs.cp("/dir", "/copy", recursive=True)
        self.assertEqual(fs.cat("/copy/sub/b"), b"bb")
        fs.mv("/copy", "/moved")
        self.assertTrue(fs.exists("/moved/a") and not fs.exists("/copy"))
        with self.assertRaises(IsADirectoryError):
            fs.rm("/moved")
        fs.rm("/moved", recursive=True)
        fs.touch("/dir/a", truncate=False)
        self.assertEqual(fs.size("/dir/a"), 3)
        self.assertEqual(fs.modified("/dir/a").year, fs.created("/dir/a").year)
        with self.assertRaises(FileNotFoundError):
            fs.info("/none")
        fs.get("/dir", str(self.folder / "got"), recursive=True)
        self.assertEqual((self.folder / "got/sub/b").read_bytes(), b"bb")
        fs.put(str(self.folder / "got"), "/put", recursive=True)
        self.assertEqual(fs.cat("/put/a"), b"aaa")

    def test_a_transaction(self):
        fs = self.fs
        with fs.transaction:
            with fs.open("/file", "wb") as file:
                file.write(b"x")
            self.assertFalse(fs.exists("/file"))
        self.assertEqual(fs.cat("/file"), b"x")
        with self.assertRaises(ZeroDivisionError), fs.transaction:
            with fs.open("/other", "wb") as file:
                file.write(b"x")
            1 / 0
        self.assertEqual(fs.ls("/", detail=False), ["/file"])

    def test_a_chain_of_urls_and_compression(self):
        with self.fs.open("/text.gz", "wt", compression="gzip", encoding="utf-8") as file:
            file.write("zwölf\n")
        self.fs.close()
        with fsspec.open(f"steadfs://text.gz::{self.image}", "rt", compression="gzip", encoding="utf-8") as file:
            self.assertEqual(file.read(), "zwölf\n")
        with self.assertRaises(ValueError):
            fsspec.open(f"steadfs://x::memory://{self.image}").open()

    def test_instances_share_a_volume(self):
        self.fs.pipe("/file", b"x")
        self.assertIs(SteadfsFileSystem(self.image, write=True).volume, self.fs.volume)
        self.fs.close()
        again = SteadfsFileSystem(self.image)
        self.assertIs(pickle.loads(pickle.dumps(again)).volume, again.volume)
        self.assertEqual(again.cat("/file"), b"x")
        with self.assertRaises(OSError):
            again.pipe("/file", b"y")
        with self.assertRaises(ValueError):
            SteadfsFileSystem()

    def test_what_is_dropped_is_written_and_gives_up_the_image(self):
        self.fs.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with fsspec.open("steadfs://file", "wb", image=self.image, write=True) as file:
                file.write(b"x")
        with fsspec.open(f"steadfs://file::{self.image}") as file:
            self.assertEqual(file.read(), b"x")
        steadfs.open(self.image, "r+").close()

    def test_links_to_directories_are_not_walked(self):
        fs = self.fs
        fs.makedirs("/dir/sub")
        fs.pipe("/dir/file", b"x")
        fs.symlink("/dir", "/dir/sub/loop")
        fs.symlink("file", "/dir/link")
        self.assertEqual({one["name"]: one["type"] for one in fs.ls("/dir/sub")}, {"/dir/sub/loop": "link"})
        self.assertEqual(fs.info("/dir/sub/loop")["type"], "directory")
        self.assertEqual(fs.find("/dir"), ["/dir/file", "/dir/link", "/dir/sub/loop"])
        self.assertEqual([top for top, _, _ in fs.walk("/dir")], ["/dir", "/dir/sub"])

    def test_rm_removes_what_matches_and_nothing_else(self):
        fs = self.fs
        fs.makedirs("/outside")
        fs.makedirs("/dir/sub/deep")
        fs.pipe({"/outside/kept": b"1", "/dir/sub/deep/x": b"2", "/dir/a.csv": b"3", "/dir/b.csv": b"4", "/dir/c": b"5"})
        fs.symlink("/outside", "/dir/slink")
        with self.assertRaises(ValueError):
            fs.rm("/dir", recursive=True, maxdepth=1)
        with self.assertRaises(IsADirectoryError):
            fs.rm("/dir/*")
        with self.assertRaises(FileNotFoundError):
            fs.rm("/dir/*.none")
        fs.rm("/dir/?.csv")
        self.assertEqual(fs.ls("/dir", detail=False), ["/dir/sub", "/dir/c", "/dir/slink"])
        fs.pipe("/dir/*", b"a file of this name")
        fs.rm("/dir/*")
        self.assertTrue(fs.exists("/dir/c") and not fs.exists("/dir/*"))
        fs.rm("/dir/s*", recursive=True)
        self.assertEqual(fs.ls("/dir", detail=False), ["/dir/c"])
        self.assertEqual(fs.cat("/outside/kept"), b"1")

    def test_a_file_that_is_closed_is_durable(self):
        with self.fs.open("/file", "wb") as file:
            file.write(b"durable")
        copy = self.folder / "copy.image"
        shutil.copyfile(self.image, copy)
        with steadfs.open(copy) as volume:
            self.assertEqual(volume.read_bytes("file"), b"durable")

    def test_an_error_of_the_sync_is_raised_by_close(self):
        file = self.fs.open("/file", "wb")
        file.write(b"x")

        class Broken:
            def __getattr__(self, name):
                return getattr(native, name)

            def sync(self, data_only):
                raise OSError(errno.EIO, "injected")

        native, file.raw._file = file.raw._file, Broken()
        with self.assertRaises(OSError):
            file.close()
        self.assertTrue(file.closed)

    def test_a_copy_onto_itself_keeps_the_file(self):
        self.fs.pipe("/file", b"kept")
        self.fs.link("/file", "/second")
        for target in ("/file", "/second"):
            with self.assertRaises(shutil.SameFileError):
                self.fs.cp_file("/file", target)
        self.assertEqual(self.fs.cat("/second"), b"kept")

    def test_modes_of_a_transaction(self):
        fs = self.fs
        fs.pipe("/file", b"old")
        with fs.transaction:
            for mode in ("ab", "r+b", "w+b"):
                with self.assertRaises(ValueError):
                    fs.open("/file", mode)
            with self.assertRaises(FileExistsError):
                fs.open("/file", "xb")
            with fs.open("/new", "xb") as file:
                file.write(b"x")
            self.assertFalse(fs.exists("/new"))
        self.assertEqual(fs.cat(["/file", "/new"]), {"/file": b"old", "/new": b"x"})
        with self.assertRaises(FileExistsError), fs.transaction:
            with fs.open("/raced", "xb") as file:
                file.write(b"late")
            fs.volume.write_bytes("/raced", b"first")
        self.assertEqual(fs.cat("/raced"), b"first")

    def test_a_file_of_a_transaction_is_closed_with_the_volume(self):
        transaction = self.fs.start_transaction() or self.fs.transaction
        file = self.fs.open("/file", "wb")
        file.write(b"x")
        self.fs.close()
        self.assertTrue(file.closed)
        transaction.files.clear()
        with steadfs.open(self.image) as volume:
            [name] = volume.listdir()
            self.assertEqual(volume.read_bytes(name), b"x")

    def test_paths_of_images_are_absolute(self):
        before = os.getcwd()
        self.fs.close()
        os.chdir(self.folder)
        try:
            for how in ({"image": "disk.image"}, {"fo": "disk.image", "target_protocol": "file"}):
                fs = SteadfsFileSystem(**how)
                self.assertIs(SteadfsFileSystem(self.image).volume, fs.volume)
            by_place = SteadfsFileSystem("disk.image")
            copies = [pickle.dumps(one) for one in (fs, by_place)]
            os.chdir("/")
            for copy in copies:
                self.assertIs(pickle.loads(copy).volume, fs.volume)
        finally:
            os.chdir(before)
        uri = "nbd+unix:///?socket=/none"
        self.assertEqual((_absolute(uri), _absolute("/nbd.img")), (uri, "/nbd.img"))

    def test_an_instance_waits_for_the_end_of_a_volume(self):
        opened = []
        with self.fs.volume._ending:
            thread = threading.Thread(target=lambda: opened.append(SteadfsFileSystem(self.image, write=True)))
            thread.start()
            thread.join(0.1)
            self.assertEqual(opened, [])
            self.fs.close()
        thread.join()
        self.assertFalse(opened[0].volume.closed)
        opened[0].close()

    def test_arguments_that_are_refused(self):
        for kind, wrong in [
            (TypeError, {"image": self.image, "partitoin": 1}),
            (ValueError, {"fo": self.image, "target_protocol": "simplecache", "write": True}),
            (ValueError, {"fo": self.image, "target_protocol": "filecache", "write": True}),
            (ValueError, {"fo": self.image, "target_protocol": "blockcache"}),
        ]:
            with self.assertRaises(kind):
                SteadfsFileSystem(**wrong)
        self.fs.pipe("/file", b"x")
        self.fs.close()
        url = f"steadfs://file::simplecache::file://{self.image}"
        with fsspec.open(url) as file:
            self.assertEqual(file.read(), b"x")

    def test_files_have_their_size(self):
        self.fs.pipe("/file", b"12345")
        with self.fs.open("/file") as file:
            self.assertEqual(file.size, 5)


if __name__ == "__main__":
    unittest.main()
