"""The command line's choice of how to decode."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from .beam import BeamSearch
from .config import RunConfig
from .decode import Speller, emitted
from .errors import SpeechError
from .evaluate import Way
from .fusion import Fusion
from .language_model import LanguageModel
from .runs import vocabulary
from .search import Beam

LANGUAGE_MODEL = "lm.arpa"


@dataclass(frozen=True)
class Search:
    """How to decode; what is not given is as the run's settings have it."""

    beam: bool = False
    """Search with the language model: a transducer's own, if none of these is given."""
    arpa: Path | None = None
    """Another language model."""
    lm_weight: float | None = None
    word_score: float | None = None

    def of(self, config: RunConfig, run: Path) -> Way | None:
        """The search, if there is to be one."""
        given = {k: v for k, v in vars(self).items() if k != "beam" and v is not None}
        if not self.beam:
            if given:
                named = ", ".join("--" + name.replace("_", "-") for name in given)
                raise SpeechError(f"{named}: only a beam search has it; add --beam")
            return None
        options, labels = replace(config.decode, **given), vocabulary(run, config)
        spell = Speller(labels, emitted)
        is_transducer = config.model.kind == "transducer"
        if is_transducer and not given and options.arpa is None:
            return Way(spell, Beam(options.symbols, options.beam))
        arpa = options.arpa or run / LANGUAGE_MODEL
        model = LanguageModel(arpa, labels)
        if some := model.unwritten:
            print(
                f"{arpa}: {len(some)} of {len(some) + len(model.words)} words "
                f"are not of model.characters and will not be found: {some[0]}, ...",
                file=sys.stderr,
            )
        if is_transducer:
            fusion = Fusion(options, model)
            return Way(spell, Beam(options.symbols, options.beam, fusion))
        return Way(BeamSearch(options, model))
