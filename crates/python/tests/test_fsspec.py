"""The file system of fsspec; ``test_abstract.py`` has fsspec's own tests."""

import pathlib
import pickle
import tempfile
import unittest
import warnings

import fsspec

import steadfs
from steadfs.fsspec import SteadfsFileSystem

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


if __name__ == "__main__":
    unittest.main()
