"""Files of Keras that are damaged, or of something else."""

import zipfile

import h5py
import numpy as np
import pytest
from keras_support import HIDDEN, layers, model_of

from prnn_jax.convert import import_keras


@pytest.mark.filterwarnings("ignore")
def test_damaged_files(tmp_path):
    model = model_of(layers.LSTM(HIDDEN))
    for file in ("model.keras", "model.h5", "model.weights.h5"):
        save = model.save_weights if "weights" in file else model.save
        save(path := tmp_path / file)
        content = path.read_bytes()
        for bad in (b"", b"no model", content[: len(content) // 2]):
            path.write_bytes(bad)
            wanted = "Keras' model.save, an archive" if ".keras" in file else "HDF5"
            with pytest.raises(ValueError, match=rf"{file} must be a file of {wanted}"):
                import_keras(path)
    for inside in ({}, {"metadata.json": '{"keras_version": "3"}'}):
        with zipfile.ZipFile(path := tmp_path / "other.keras", "w") as archive:
            for name, text in inside.items():
                archive.writestr(name, text)
        with pytest.raises(
            ValueError, match=r"other\.keras must .* an archive with me"
        ):
            import_keras(path)


@pytest.mark.filterwarnings("ignore")
def test_float64_is_not_taken_for_float32(tmp_path):
    """As other backends of Keras save it."""
    path = tmp_path / "model.h5"
    model_of(layers.LSTM(HIDDEN)).save(path)
    with h5py.File(path, "r+") as file:
        arrays = {}
        file.visititems(lambda name, one: arrays.update({name: one}))
        for name, one in arrays.items():
            if isinstance(one, h5py.Dataset):
                value = np.float64(one[()])
                del file[name]
                file[name] = value
    message = "a weight of .* is float64, which JAX has with jax_enable_x64 only"
    with pytest.raises(ValueError, match=message):
        import_keras(path)
