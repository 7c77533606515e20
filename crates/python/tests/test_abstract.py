"""fsspec's own tests of implementations (``fsspec.tests.abstract``); they need pytest."""

import fsspec.tests.abstract as abstract
import pytest

import steadfs
from steadfs.fsspec import SteadfsFileSystem


class SteadfsFixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class", params=["ext4", "f2fs"])
    def fs(self, request, tmp_path_factory):
        image = tmp_path_factory.mktemp("image") / "disk.img"
        steadfs.format(image, "128M", request.param)
        fs = SteadfsFileSystem(image, write=True, auto_mkdir=True)
        yield fs
        fs.close()
        assert steadfs.check(image).is_clean

    @pytest.fixture
    def fs_path(self):
        return "/tests"

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self):
        return True


class TestCopy(abstract.AbstractCopyTests, SteadfsFixtures):
    pass


class TestGet(abstract.AbstractGetTests, SteadfsFixtures):
    pass


class TestPut(abstract.AbstractPutTests, SteadfsFixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, SteadfsFixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, SteadfsFixtures):
    pass

