"""Command line: `python -m examples.speech COMMAND`, with --help for each."""

import io
import sys
from collections.abc import Sequence

try:
    import tyro

    from . import commands
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}: the example needs `pip install 'prnn_jax[speech]'`")
except KeyboardInterrupt:  # the imports take some seconds
    sys.exit("interrupted; nothing was begun")
from .errors import SpeechError
from .settings import with_files

COMMANDS = {
    "demo": commands.demo,
    "train": commands.train,
    "evaluate": commands.evaluate,
    "transcribe": commands.transcribe,
    "stream": commands.stream,
    "export": commands.export,
    "bench": commands.bench,
    "memory": commands.memory,
    "vocabulary": commands.vocabulary,
    "synth": commands.synth,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command that the arguments name."""
    given = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):  # it may know fewer letters
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="python -m examples.speech",
            description="Speech recognition with recurrent layers.",
            args=with_files(given),
        )
    except SpeechError as error:
        sys.exit(f"error: {error}")
    except OSError as error:  # of a full disk, for one
        named = error.filename and error.strerror
        sys.exit(f"error: {error.filename}: {named}" if named else f"error: {error}")
    except MemoryError as error:
        sys.exit(f"error: there is not enough memory: {error}")
    except KeyboardInterrupt:
        goes_on = list(given[:1]) in (["train"], ["demo"])
        after = "; the same command goes on after the last checkpoint"
        sys.exit("interrupted" + after * goes_on)


if __name__ == "__main__":
    main()
