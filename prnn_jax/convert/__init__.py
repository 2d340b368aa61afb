"""Parameters of other libraries' recurrent layers as `prnn_jax.Params`, and back.

`from_<library>(cell, arrays)` takes the library's own name of a layer or cell, and its
arrays as the library gives them; `to_<library>(cell, params)` is the inverse. No
library is imported. Wrong names and shapes raise ValueError.

A way there and back gives the same values, unless the docstring says what is added up.
Arrays become JAX's, so float64 needs `jax_enable_x64`.

`import_pytorch`, `import_onnx`, `import_keras`, `import_tflite`, `import_openvino` and
`import_rnnoise` take a whole model and find the network in it; what they give is an
`Imported`, which can be called. So does `import_xlstm`, whose `SlstmLayer` has a
convolution and a norm besides; its inverse is `to_xlstm`. `import_effect` reads models
of amplifiers and the like, with what is around the network; its inverse is
`export_effect`.
`update_pytorch`, `update_onnx` and `update_keras` put it back, e.g. after training;
`export_onnx` makes a model of layers.

Cells know one direction: `stack_directions` makes a bidirectional layer of two. For an
ensemble, whose arrays have one more axis, there is `jax.vmap`. None of the libraries
has layers with heads.
"""

from prnn_jax.convert._effect.effect import Dense, Effect
from prnn_jax.convert._effect.export import export_effect
from prnn_jax.convert._effect.files import import_effect
from prnn_jax.convert._equinox import from_equinox, to_equinox
from prnn_jax.convert._flax import from_linen, from_nnx, to_linen, to_nnx
from prnn_jax.convert._haiku import from_haiku, to_haiku
from prnn_jax.convert._keras.models import import_keras
from prnn_jax.convert._keras.params import from_keras, to_keras
from prnn_jax.convert._keras.updates import update_keras
from prnn_jax.convert._onnx.export import export_onnx
from prnn_jax.convert._onnx.models import import_onnx
from prnn_jax.convert._onnx.params import from_onnx, to_onnx
from prnn_jax.convert._onnx.updates import update_onnx
from prnn_jax.convert._openvino.models import import_openvino
from prnn_jax.convert._pytorch.models import import_pytorch
from prnn_jax.convert._pytorch.params import from_pytorch, to_pytorch
from prnn_jax.convert._pytorch.updates import update_pytorch
from prnn_jax.convert._rnnoise import import_rnnoise
from prnn_jax.convert._shared.directions import split_directions, stack_directions
from prnn_jax.convert._shared.imported import Imported
from prnn_jax.convert._tflite.models import import_tflite
from prnn_jax.convert._xlstm.layer import SlstmLayer
from prnn_jax.convert._xlstm.models import import_xlstm, to_xlstm

__all__ = [
    "Dense",
    "Effect",
    "Imported",
    "SlstmLayer",
    "export_effect",
    "export_onnx",
    "from_equinox",
    "from_haiku",
    "from_keras",
    "from_linen",
    "from_nnx",
    "from_onnx",
    "from_pytorch",
    "import_effect",
    "import_keras",
    "import_onnx",
    "import_openvino",
    "import_pytorch",
    "import_rnnoise",
    "import_tflite",
    "import_xlstm",
    "split_directions",
    "stack_directions",
    "to_equinox",
    "to_haiku",
    "to_keras",
    "to_linen",
    "to_nnx",
    "to_onnx",
    "to_pytorch",
    "to_xlstm",
    "update_keras",
    "update_onnx",
    "update_pytorch",
]
