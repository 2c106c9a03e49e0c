"""`verify_model`: from a configuration to a report that a person or a CI can judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from deepinfer_core.config import EngineConfig
from deepinfer_core.engine_setup import LoadedModel, load_model, resolve_dtype
from deepinfer_core.errors import ConfigError
from deepinfer_core.kv.layout import make_layout
from deepinfer_core.models.interface import tower_of
from deepinfer_core.plugins import PluginHost
from deepinfer_core.speculative.choose import NO_PROPOSER
from deepinfer_core.speculative.drafters import own_proposer
from deepinfer_core.verify.cases import NUM_COMMON, make_cases
from deepinfer_core.verify.check import PointResult, Verifier
from deepinfer_core.verify.forms import form_cases, with_thinking
from deepinfer_core.verify.images import image_cases

CLOSE_BOUNDS = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1.5e-1}
"""Without batch-invariant kernels: how close the two most likely tokens of the plain run must be,
in log-probability, for a greedy answer to leave it there. About the rounding of a logit of size
20 in each dtype."""

PASSAGES = (
    "The ship left the harbor at dawn with forty barrels of salt and a letter for the governor. "
    "By noon the wind had turned, and the captain asked the cook what he thought of the sky. "
    "Nobody answered. The gulls that had followed them since the lighthouse were gone.",
    "def area(points):\n    total = 0\n    for (x1, y1), (x2, y2) in zip(points, points[1:]):\n"
    "        total += x1 * y2 - x2 * y1\n    return abs(total) / 2\n\nprint(area([(0, 0)]))\n",
    "1. Rinse the lentils. 2. Fry onion, garlic and cumin in oil. 3. Add the lentils and a "
    "liter of water. 4. Simmer for 25 minutes. 5. Season with lemon, salt and chili. Serves four.",
)
"""Real text to cut prompts from."""

Progress = Callable[[str, int, int], None]
"""Called with what is being run, how many are done, and of how many."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """All points and how they compare."""

    model: str
    dtype: str
    seed: int
    bound: float | None
    """None: equal tokens and equal bits of log-probabilities were demanded."""
    num_cases: int
    max_tokens: int
    results: list[PointResult]

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results)

    def reproduction(self, result: PointResult) -> str:
        """One line that runs a point again."""
        mode = "" if self.bound is None else " --no-batch-invariant"
        return (
            f"deepinfer verify {self.model} --dtype {self.dtype}{mode} --seed {self.seed} "
            f"--max-tokens {self.max_tokens} --points 1 --first {result.point.index}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **{name: getattr(self, name) for name in ("model", "dtype", "seed", "bound")},
            "num_cases": self.num_cases,
            "passed": self.passed,
            "points": [
                {
                    **asdict(result),
                    "passed": result.passed,
                    **({} if result.passed else {"reproduction": self.reproduction(result)}),
                }
                for result in self.results
            ],
        }


def verify_model(
    config: EngineConfig,
    *,
    num_points: int,
    seed: int = 0,
    first: int = 0,
    max_tokens: int = 16,
    host: PluginHost | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Run a model plainly and at random points, and compare.

    With `device.batch_invariant` tokens and bits of log-probabilities must be equal, greedy and
    sampled; without it, only greedy cases run and `CLOSE_BOUNDS` says where they may differ.

    Args:
        first: index of the first point.
        max_tokens: of each output.
        progress: called before each plain run and each point.

    Raises:
        ConfigError: fewer than one point, or answers after prefix hits are approximate.
        ModelLoadError, PlatformError, PluginError: the model cannot be run.
    """
    if num_points < 1:
        raise ConfigError(
            "nothing to verify", field="points", value=num_points, allowed="1 or more"
        )
    if config.cache.bounded_replay:
        raise ConfigError(
            "what is computed behind a replay is not meant to equal the plain run",
            field="cache.bounded_replay",
            value=True,
            allowed="False where answers are verified",
        )
    if host is None:
        host = PluginHost(allow=config.plugin.plugins, block=config.plugin.block)
    if config.speculative.proposer == NO_PROPOSER and (own := own_proposer(config, host)):
        speculative = config.speculative.model_copy(update={"proposer": own})
        config = config.model_copy(update={"speculative": speculative})
    loaded = load_model(config, host)
    is_strict = config.device.batch_invariant
    dtype = resolve_dtype(config.model, loaded.info)
    bound = None if is_strict else CLOSE_BOUNDS[dtype]
    verifier = _make_verifier(config, loaded, seed=seed, max_tokens=max_tokens, bound=bound)
    tell = progress or (lambda what, done, total: None)
    num_cases = verifier.num_cases
    tell("plain run", 0, num_cases)
    for done in verifier.run_plain():
        tell("plain run", done, num_cases)
    results = []
    for done, index in enumerate(range(first, first + num_points)):
        tell("points", done, num_points)
        results.append(verifier.run_point(verifier.random_point(seed, index), seed))
    tell("points", num_points, num_points)
    return VerifyReport(config.model.model, dtype, seed, bound, num_cases, max_tokens, results)


def _make_verifier(
    config: EngineConfig, loaded: LoadedModel, *, seed: int, max_tokens: int, bound: float | None
) -> Verifier:
    encode = loaded.tokenizer.encode
    # Where a cache is found in large steps only, what prompts share must be as large.
    least_hit = make_layout(loaded.model.layer_kv(), block_size=1).hit_granularity
    cases = make_cases(
        seed,
        vocab_size=loaded.info.vocab_size,
        max_tokens=max_tokens,
        texts=[encode(text, add_special_tokens=False) for text in PASSAGES],
        greedy_only=bound is not None,
        num_common=max(NUM_COMMON, least_hit),
    )
    if (tower := tower_of(loaded.model)) is not None:
        cases += image_cases(cases, tower.config, seed)
    config = with_thinking(config, loaded)
    cases += form_cases(cases, loaded, config, seed)
    return Verifier(config, loaded, cases, bound=bound)
