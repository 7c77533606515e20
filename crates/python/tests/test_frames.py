"""pandas and pyarrow on a volume; they need the installed package."""

import os
import pathlib
import tempfile

import pandas
import pyarrow.dataset
import pyarrow.parquet

import fsspec
import steadfs


def test_frames():
    with tempfile.TemporaryDirectory() as folder:
        image = os.path.join(folder, "disk.image")
        steadfs.format(image, "64M", "f2fs")
        fs = fsspec.filesystem("steadfs", image=image, write=True)
        assert type(fs).__module__ == "steadfs.fsspec"
        fs.makedirs("/data")
        frame = pandas.DataFrame({"number": range(100_000), "text": [str(n) for n in range(100_000)]})
        for part in range(3):
            with fs.open(f"/data/{part}.parquet", "wb") as file:
                frame.to_parquet(file)
        frame.to_csv("steadfs://table.csv", index=False, storage_options={"image": image, "write": True})
        fs.close()
        assert pandas.read_csv(f"steadfs://table.csv::{image}", dtype={"text": str}).equals(frame)
        fs = fsspec.filesystem("steadfs", image=image)
        table = pyarrow.dataset.dataset("/data", filesystem=fs, format="parquet").to_table()
        assert table.num_rows == 300_000
        assert pyarrow.parquet.read_table("/data/1.parquet", filesystem=fs).to_pandas().equals(frame)
        fs.close()
        assert steadfs.check(image).is_clean
