"""The examples of README.md, as they are written."""

import doctest
import importlib.util
import os
import pathlib
import tempfile
import unittest

import steadfs

README = pathlib.Path(__file__).resolve().parent.parent / "README.md"


class Readme(unittest.TestCase):
    def test_examples(self):
        examples = doctest.DocTestParser().get_examples(README.read_text(encoding="utf-8"))
        if not importlib.util.find_spec("fsspec"):
            self.fail("fsspec is missing: install python3-fsspec, or fsspec by pip")
        self.run_examples(examples, "README.md")

    def test_the_example_of_the_module(self):
        self.run_examples(doctest.DocTestParser().get_examples(steadfs.__doc__), "steadfs")

    def run_examples(self, examples, name):
        self.assertTrue(examples)
        # A package that is not installed has no entry points.
        if importlib.util.find_spec("fsspec"):
            import fsspec

            fsspec.register_implementation("steadfs", "steadfs.fsspec.SteadfsFileSystem", clobber=True)
        test = doctest.DocTest(examples, {}, name, name, 0, None)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                runner.run(test)
            finally:
                os.chdir(before)
        self.assertEqual(runner.failures, 0)


if __name__ == "__main__":
    unittest.main()
