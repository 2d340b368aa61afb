"""Recognising while the sound comes in, chunk by chunk.

Every chunk goes through one compiled function of one shape, whose weights were packed
once. Joined together, its results are those of the whole recording at once.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import soxr
from flax import nnx

import prnn_jax

from . import audio
from .config import FeatureConfig, RunConfig
from .decode import GreedyStream
from .errors import SpeechError
from .features import log_mel
from .model import FRAME_STRIDE, FrontEnd, Recogniser, output_frames
from .search import Greedy, GreedyPieces
from .weights import Weights, as_given


class State(NamedTuple):
    """What passes from chunk to chunk."""

    frames: jax.Array  # that the convolution needs of what came earlier
    recurrent: Any
    waiting: jax.Array  # outputs of the layers that look ahead


class ChunkModel(NamedTuple):
    """A recogniser for chunks of one size.

    `advance(state, features [chunk, mel_bins], frames) -> (state, logits)`, of which
    `frames` count. The logits [chunk / 2, labels] lag `lookahead` frames behind.
    `decoder()` makes of those of one recording the text, piece by piece. What a
    transducer hears stands for logits.
    """

    start: State
    advance: Callable[[State, np.ndarray, int], tuple[State, jax.Array]]
    chunk: int
    lookahead: int
    decoder: Callable[[], Callable[[np.ndarray], str]]


def chunk_model(
    config: RunConfig,
    recogniser: Recogniser,
    chunk_ms: int,
    weights: Weights = "prepared",
) -> ChunkModel:
    """A recogniser for chunks of so many milliseconds."""
    options = config.model
    if options.direction != "forward":
        raise SpeechError(
            'a stream needs a model with direction = "forward"; this one runs in both, '
            "over whole recordings"
        )
    chunk = frames_of(config, chunk_ms)
    stack = recogniser.recurrent
    size = {"batch": 1, "time": chunk // FRAME_STRIDE}
    dtype = jnp.dtype(options.dtype)
    in_dtype = partial(jax.tree.map, lambda array: array.astype(dtype))
    layers = [
        prnn_jax.Layer(
            as_given(options.cell, in_dtype(layer.params), weights, **size),
            in_dtype(prnn_jax.Norm(norm["scale"][...], norm["bias"][...])),
        )
        for layer, norm in zip(stack.layers, stack.norms, strict=True)
    ]
    graph, others = nnx.split(recogniser)

    @jax.jit
    def advance(others, layers, state: State, features, frames):
        model = nnx.merge(graph, others)
        x = model.normalise(features[None], frames[None])
        x = jnp.concatenate([state.frames, x], 1)
        y, recurrent = prnn_jax.stack(
            options.cell,
            model.front_end(x),
            layers,
            state.recurrent,
            lengths=output_frames(frames)[None],
            skip_connections=options.skip_connections,
            implementation=options.implementation,
        )
        y = jnp.concatenate([state.waiting, y], 1)
        kept = State(
            frames=x[:, -FrontEnd.BEFORE :],
            recurrent=recurrent,
            waiting=y[:, y.shape[1] - options.lookahead :],
        )
        return kept, model.decided(model.norm(model.lookahead(y)))[0]

    start = State(
        frames=jnp.zeros((1, FrontEnd.BEFORE, config.features.mel_bins)),
        recurrent=stack.initialize_carry((1, options.channels)),
        waiting=jnp.zeros((1, options.lookahead, options.hidden_size), dtype),
    )
    return ChunkModel(
        # On a device, as all states after it: else the second chunk compiles once more.
        jax.device_put(start, jax.devices()[0]),
        lambda state, features, frames: advance(
            others, layers, state, features, np.int32(frames)
        ),
        chunk,
        options.lookahead,
        _decoder(config, recogniser, chunk // FRAME_STRIDE),
    )


def frames_of(config: RunConfig, chunk_ms: int) -> int:
    """Of a chunk; SpeechError if the network does not step so."""
    step = FRAME_STRIDE * config.features.hop_ms
    if chunk_ms < step or chunk_ms % step:
        raise SpeechError(f"chunks must be a multiple of {step} ms, got {chunk_ms}")
    return chunk_ms // config.features.hop_ms


def _decoder(
    config: RunConfig, recogniser: Recogniser, frames: int
) -> Callable[[], Callable[[np.ndarray], str]]:
    if recogniser.transducer is None:
        return partial(GreedyStream, recogniser.vocabulary)
    search = Greedy(config.decode.symbols)
    graph, weights = nnx.split(recogniser.transducer)

    @jax.jit
    def go_on(weights, written, heard, count):
        transducer = nnx.merge(graph, weights)
        written, labels = search.go_on(transducer, written, heard[None], count[None])
        return written, labels[0]

    return partial(
        GreedyPieces,
        lambda written, heard, count: go_on(weights, written, heard, np.int32(count)),
        jax.device_put(recogniser.transducer.begin(1), jax.devices()[0]),
        frames,
        recogniser.vocabulary,
    )


class Stream:
    """One recording on its way: samples in, text out."""

    def __init__(self, config: RunConfig, model: ChunkModel):
        self._features, self._model = config.features, model
        self._state = model.start
        self._samples = np.zeros(0, np.float32)  # that no whole chunk is made of yet
        self._decode = model.decoder()
        self._lag = model.lookahead  # outputs that belong before the first frame

    def feed(self, samples: np.ndarray) -> str:
        """What the text grows by with these samples."""
        self._samples = np.concatenate([self._samples, samples])
        chunk, hop = self._model.chunk, self._features.hop
        needed = samples_for(chunk, self._features)
        text = ""
        while len(self._samples) >= needed:
            text += self._decode(
                self._advance(log_mel(self._samples[:needed], self._features))
            )
            self._samples = self._samples[chunk * hop :]
        return text

    def finish(self) -> str:
        """The rest of the text."""
        frames = log_mel(self._samples, self._features)
        left = output_frames(len(frames)) + self._model.lookahead - self._lag
        pieces = [self._advance(frames)]
        while sum(map(len, pieces)) < left:
            pieces.append(self._advance(frames[:0]))
        return self._decode(np.concatenate(pieces)[:left])

    def _advance(self, frames: np.ndarray) -> np.ndarray:
        padded = np.zeros((self._model.chunk, frames.shape[1]), np.float32)
        padded[: len(frames)] = frames
        self._state, logits = self._model.advance(self._state, padded, len(frames))
        early, self._lag = self._lag, max(0, self._lag - len(logits))
        return np.asarray(logits)[early:]


def samples_for(frames: int, config: FeatureConfig) -> int:
    """How many samples so many frames look at."""
    return (frames - 1) * config.hop + config.window


def from_file(file: Path, sample_rate: int, chunk_ms: int) -> Iterator[np.ndarray]:
    """A recording of any format and rate in pieces of a chunk's length."""
    try:
        with audio.opened(file) as sound:
            resampler = soxr.ResampleStream(sound.samplerate, sample_rate, 1)
            size = max(1, sound.samplerate * chunk_ms // 1000)
            for block in audio.blocks(sound, size):
                yield resampler.resample_chunk(block)
            yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)
    except ValueError as error:
        raise SpeechError(f"{file}: {error}") from None


def from_pipe(pipe: BinaryIO, sample_rate: int, chunk_ms: int) -> Iterator[np.ndarray]:
    """Raw samples, 16 bits, little-endian, of one channel, at the model's rate.

    Ctrl-C ends them.
    """
    size = 2 * (sample_rate * chunk_ms // 1000)
    try:
        block = pipe.read(size)
        if block.startswith(_FILES):
            raise SpeechError(
                f"-: expected raw samples, got a file that begins with {block[:4]!r}: "
                f"`ffmpeg -i FILE -f s16le -ac 1 -ar {sample_rate} -` makes them of it"
            )
        while block:
            yield np.frombuffer(block[: len(block) // 2 * 2], "<i2") / np.float32(32768)
            block = pipe.read(size)
    except KeyboardInterrupt:
        return


#: What files begin with that people send through a pipe.
_FILES = (
    *(b"RIFF", b"RF64", b"FORM", b".snd"),  # WAV, AIFF, AU
    *(b"fLaC", b"OggS", b"ID3", b"\x1aE\xdf\xa3"),  # the last of WebM
)
