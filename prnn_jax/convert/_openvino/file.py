"""Files of OpenVINO (IR): an .xml, and a .bin beside it with the weights."""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import numpy as np

from prnn_jax._given.checks import check
from prnn_jax.convert._onnx.making import must
from prnn_jax.convert._openvino.network import (
    Body,
    Layer,
    Network,
    Port,
    Value,
    integer,
)
from prnn_jax.convert._openvino.numbers import numbers

_OP = "import_openvino"
#: Of the format; those of 2019 and before have other operators.
_OLDEST = 10
#: Elements inside of each other; no model has as many.
_DEPTH = 200
#: What runs layers of its own.
_BODIES = "TensorIterator", "Loop"
#: What reading a damaged file may raise.
_DAMAGED = (
    *(expat.ExpatError, IndexError, TypeError, ValueError, OverflowError, KeyError),
    *(AttributeError, RecursionError, MemoryError),
)


def loaded(model: Any) -> tuple[str, Network]:
    """What messages call a model, and its network, from what `import_openvino` takes.

    Raises:
      ValueError: it is no such file, or is damaged.
      FileNotFoundError: there is none, or none of its weights.
      ImportError: the package onnx is missing.
    """
    try:
        import onnx  # noqa: F401, for what is made of the file
    except ModuleNotFoundError as error:
        raise ImportError(f"{_OP} needs the package onnx: pip install onnx.") from error
    if hasattr(model, "get_ordered_ops"):
        return _of_model(model)
    check(
        isinstance(model, (str, os.PathLike)),
        f"{_OP}: model must be a path of an .xml file of OpenVINO, or an "
        f"openvino.Model, got {type(model).__name__}.",
    )
    path = Path(model)
    check(
        not path.is_dir() and path.suffix != ".bin",
        f"{_OP}: {path} must be the .xml file of a model, got "
        f"{'a folder' if path.is_dir() else 'its weights'}; name the .xml.",
    )
    return str(path), _read(path, str(path))


@contextmanager
def whole(what: str) -> Iterator[None]:
    """Where a file is read that may be damaged.

    Raises:
      ValueError: it is.
    """
    try:
        yield
    except _DAMAGED as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise ValueError(
            f"{_OP}: {what} must be a whole model of OpenVINO, an .xml file of version "
            f"{_OLDEST} or newer: {kind}{error}."
        ) from error


def _of_model(model: Any) -> tuple[str, Network]:
    """Of a model in memory, by way of its file."""
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xml"
        openvino.serialize(model, path, path.with_suffix(".bin"))
        return "the model", _read(path, "the model")


def _read(path: Path, what: str) -> Network:
    text, weights = path.read_bytes(), path.with_suffix(".bin")
    with whole(what):
        root = _parsed(text)
        _check_kind(root)
    # Mapped, not read: what no layer needs stays where it is.
    is_empty = weights.stat().st_size == 0
    data = np.zeros(0, np.uint8) if is_empty else np.memmap(weights, np.uint8, "r")
    with whole(what):
        return _Reader(data).network(root)


def _parsed(text: bytes) -> Element:
    """The elements of a file that has no declarations of its own."""
    builder, parser = TreeBuilder(), expat.ParserCreate()
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        must(depth <= _DEPTH, f"more than {_DEPTH} elements are inside of each other")
        builder.start(name, attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name)

    def declared(*_: Any) -> None:
        must(False, "it has a DOCTYPE, which no model has and which is not read")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = declared
    parser.Parse(text, True)
    return builder.close()


def _check_kind(root: Element) -> None:
    is_net = root.tag == "net" and root.find("layers") is not None
    must(is_net, f"it has no <net> with <layers>, but <{root.tag}>")
    version = integer(root.get("version", "0"), "its version")
    must(
        version >= _OLDEST,
        f"it is of version {version}, of 2019 or before; convert the model anew, by "
        "openvino.convert_model",
    )


def _sizes(port: Element) -> tuple[int, ...] | None:
    """Of a value; None where there are none, as of a scalar and of unknown axes."""
    sizes = tuple(integer(one.text, "a size") for one in port.findall("dim"))
    return sizes or None


class _Reader:
    """Of one file, with the bytes of its weights."""

    def __init__(self, data: np.ndarray):
        self._data = data
        self._counts: dict[str, int] = {}

    def network(self, root: Element) -> Network:
        return self._network(root)[0]

    def _network(self, root: Element) -> tuple[Network, dict[str, tuple[str, str]]]:
        """With the names of each layer's first output and input, by its id."""
        elements = root.findall("layers/layer")
        names = {
            one.get("id", ""): self._unique(one.get("name", "")) for one in elements
        }
        values = self._values(elements, names)
        read: dict[tuple[str, str], str] = {}
        for edge in root.findall("edges/edge"):
            source = edge.get("from-layer", ""), edge.get("from-port", "")
            must(source in values, f"an edge is from {source}, layer and port")
            target = edge.get("to-layer", ""), edge.get("to-port", "")
            read[target] = values[source].name
        layers, ends = [], {}
        for one in elements:
            number, kind = one.get("id", ""), one.get("type", "")
            inputs = tuple(
                read.get((number, port.get("id", "")), "")
                for port in one.findall("input/port")
            )
            outputs = tuple(
                values[number, port.get("id", "")]
                for port in one.findall("output/port")
            )
            data = one.find("data")
            options = {} if data is None else dict(data.attrib)
            name, stored, fault, body = names[number], None, "", None
            if kind == "Const":
                stored, fault = self._stored(name, options)
            if kind in _BODIES:
                body = self._body(one)
            holds = (
                ()
                if body
                else tuple(
                    inner.get("type", "")
                    for inner in one.iter("layer")
                    if inner is not one
                )
            )
            layers.append(
                Layer(name, kind, options, inputs, outputs, stored, fault, body, holds)
            )
            ends[number] = (inputs or ("",))[0], outputs[0].name if outputs else ""
        return Network(root.get("name", ""), layers), ends

    def _unique(self, name: str) -> str:
        """A name that is no other's."""
        self._counts[name] = self._counts.get(name, -1) + 1
        if name and not self._counts[name]:
            return name
        return self._unique(f"{name}#{self._counts[name]}")

    def _values(
        self, elements: Sequence[Element], names: Mapping[str, str]
    ) -> dict[tuple[str, str], Value]:
        """By layer and port."""
        values = {}
        for one in elements:
            number = one.get("id", "")
            for n, port in enumerate(one.findall("output/port")):
                name = names[number] if n == 0 else self._unique(f"{names[number]}.{n}")
                is_float = port.get("precision", "FP32") in ("FP32", "FP16", "BF16")
                values[number, port.get("id", "")] = Value(name, _sizes(port), is_float)
        return values

    def _stored(
        self, name: str, options: Mapping[str, str]
    ) -> tuple[np.ndarray | None, str]:
        """The numbers of a constant, or why there are none."""
        first, size = (
            integer(options.get(one, "0"), f"{one} of {name!r}")
            for one in ("offset", "size")
        )
        shape = tuple(
            integer(part, f"a size of {name!r}")
            for part in options.get("shape", "").split(",")
            if part.strip()
        )
        must(
            0 <= first <= first + size <= len(self._data),
            f"{name!r} is at {first} to {first + size} of a .bin file of "
            f"{len(self._data)} bytes",
        )
        kind = options.get("element_type", "")
        made = numbers(self._data[first : first + size], kind, shape)
        return made, "" if made is not None else f"of the element_type {kind!r}"

    # ---- loops -----------------------------------------------------------------------

    def _body(self, layer: Element) -> Body | None:
        """What a loop runs; None of one that is written in another way."""
        body = layer.find("body")
        if body is None:
            return None
        network, ends = self._network(body)
        places = [
            {port.get("id", ""): n for n, port in enumerate(layer.findall(side))}
            for side in ("input/port", "output/port")
        ]

        def ports(side: int) -> list[Port]:
            tag = ("input", "output")[side]
            return [
                self._port(one, places[side], ends, side)
                for one in layer.findall(f"port_map/{tag}")
            ]

        back = {
            self._end(ends, edge.get("to-layer"), 0): self._end(
                ends, edge.get("from-layer"), 1
            )
            for edge in layer.findall("back_edges/edge")
        }
        return Body(network, ports(0), ports(1), back)

    def _port(
        self,
        one: Element,
        places: Mapping[str, int],
        ends: Mapping[str, tuple[str, str]],
        side: int,
    ) -> Port:
        axis = one.get("axis")
        stride = integer(one.get("stride", "1"), "a stride")
        bounds = [integer(one.get(n, "0"), n) for n in ("start", "end")]
        usual = [0, -1] if stride > 0 else [-1, 0]
        is_whole = abs(stride) == 1 == integer(one.get("part_size", "1"), "a part")
        is_whole = is_whole and all(
            one.get(name) is None or had == wanted
            for name, had, wanted in zip(("start", "end"), bounds, usual, strict=True)
        )
        return Port(
            places.get(one.get("external_port_id", ""), -1),
            self._end(ends, one.get("internal_layer_id"), side),
            None if axis is None else integer(axis, "an axis"),
            stride,
            is_whole,
            one.get("purpose", ""),
        )

    def _end(
        self, ends: Mapping[str, tuple[str, str]], number: str | None, side: int
    ) -> str:
        """The name of a body's input, or of what its result is."""
        must(number in ends, f"a loop has no layer {number}")
        return ends[number or ""][0 if side else 1]
