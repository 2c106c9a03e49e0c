"""An obvious sampler, one row at a time in plain Python, and the tools to compare with it."""

import itertools
import math

import numpy as np
import pytest
import torch
from deepinfer_core.ops.table import reference_table
from deepinfer_core.runtime.token_pool import TokenPool
from deepinfer_core.sampling.result import to_host
from deepinfer_core.sampling.sampler import Sampler
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.scheduling.plan import RowStart

F = np.float32
INF = float("inf")


class Obvious:
    """What the sampler has to compute, written for reading."""

    @staticmethod
    def philox(counter, key):
        c, k = list(counter), list(key)
        for _ in range(10):
            p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
            c = [
                (p1 >> 32) ^ c[1] ^ k[0],
                p1 & 0xFFFFFFFF,
                (p0 >> 32) ^ c[3] ^ k[1],
                p0 & 0xFFFFFFFF,
            ]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        return c

    @classmethod
    def noise(cls, seed, sample_index, position, token_id):
        seed &= 2**64 - 1
        counter = (position, sample_index, 0, token_id // 4)
        word = cls.philox(counter, (seed & 0xFFFFFFFF, seed >> 32))[token_id % 4]
        return F(-math.log(-math.log(((word >> 8) + 0.5) * 2.0**-24)))

    @staticmethod
    def before_temperature(logits, start, output, allowed=None):
        """Masks, logit_bias and penalties of one row, float32 [V]."""
        params, prompt = start.params, list(start.prompt_token_ids)
        x = [F(v) for v in logits]
        forbidden = set()
        for permitted in (allowed, params.allowed_token_ids):
            if permitted is not None:
                forbidden |= set(range(len(x))) - set(permitted)
        text = tuple(prompt + output)
        for word in start.bad_token_ids:
            head = word[:-1]
            if not head or text[-len(head) :] == head:
                forbidden.add(word[-1])
        if len(output) < params.min_tokens:
            forbidden |= start.stop_token_ids
        for token in forbidden:
            x[token] = F(-INF)
        for token, bias in (params.logit_bias or {}).items():
            x[token] = x[token] + F(bias)
        for token in set(text):
            penalty = F(params.repetition_penalty)
            x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
        for token in set(output):
            x[token] = x[token] - F(params.frequency_penalty) * F(output.count(token))
            x[token] = x[token] - F(params.presence_penalty)
        return np.array(x, dtype=F)

    @staticmethod
    def after_temperature(logits, params):
        """Temperature and truncation of one row; -inf where a token is dropped."""
        x = (logits - logits.max()) / F(params.temperature)
        x[x < F(math.log(params.min_p) if params.min_p else -INF)] = -INF
        ranked = sorted(range(len(x)), key=lambda i: (-x[i], i))
        kept = ranked[: params.top_k] if params.top_k > 0 else ranked
        if params.top_p < 1:
            weights = [math.floor(math.exp(float(x[i])) * 2**40) for i in kept]
            enough = float(F(params.top_p)) * sum(weights)
            before = itertools.accumulate(weights, initial=0)
            kept = [i for i, mass in zip(kept, before, strict=False) if mass < enough]
        result = np.full(len(x), -INF, dtype=F)
        result[kept] = x[kept]
        return result

    @classmethod
    def draw(cls, logits, start, output, allowed=None):
        """Token id and processed logits of one row; None where nothing is left."""
        x = cls.before_temperature(logits, start, output, allowed)
        if x.max() == -INF:
            return None, x
        if start.params.temperature == 0:
            return int(x.argmax()), x
        x = cls.after_temperature(x, start.params)
        position = len(start.prompt_token_ids) + len(output)
        scores = [
            value + cls.noise(start.seed, start.sample_index, position, token)
            if value > -INF
            else F(-INF)
            for token, value in enumerate(x)
        ]
        return int(np.argmax(scores)), x


@pytest.fixture(scope="session")
def obvious():
    return Obvious


class Rows:
    """A sampler with its token pool, driven like the runner drives it."""

    def __init__(self, vocab_size, max_num_seqs=16, custom_stages=None):
        self.vocab_size = vocab_size
        self.sampler = Sampler(
            reference_table(),
            max_num_seqs=max_num_seqs,
            vocab_size=vocab_size,
            custom_stages=custom_stages,
        )
        self.pool = TokenPool(max_num_seqs)
        self.starts = {}
        self.lengths = {}

    def start(self, row, prompt=(1,), *, seed=0, sample_index=0, stops=(), bad=(), **params):
        start = RowStart(
            row=row,
            params=SamplingParams(**params),
            seed=seed,
            sample_index=sample_index,
            prompt_token_ids=list(prompt),
            stop_token_ids=frozenset(stops),
            bad_token_ids=tuple(map(tuple, bad)),
        )
        self.sampler.start_row(start)
        longest = max(map(len, start.bad_token_ids), default=0)
        self.pool.start_row(row, start.prompt_token_ids, history_len=longest)
        self.starts[row], self.lengths[row] = start, len(start.prompt_token_ids)
        return start

    def sample(self, logits, rows, mask=None):
        """One step; returns the raw `SampledTokens`."""
        positions = [self.lengths[row] for row in rows]
        sampled = self.sampler.sample(logits.clone(), rows, positions, self.pool, mask)
        places = self.pool.places(
            torch.tensor(rows, dtype=torch.int64), torch.tensor(positions, dtype=torch.int64)
        )
        self.pool.write(places, sampled.token_ids)
        self.sampler.count(rows, sampled.token_ids)
        for row in rows:
            self.lengths[row] += 1
        return sampled

    def step(self, logits, rows, mask=None):
        return to_host(self.sample(logits, rows, mask).to_host())


@pytest.fixture(scope="session")
def make_rows():
    return Rows


@pytest.fixture(scope="session")
def random_logits():
    """Logits as models make them: half of the time rounded so that ties are common."""

    def make(num_rows, vocab_size, seed):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(num_rows, vocab_size, generator=generator) * 3
        return logits if seed % 2 else (logits * 2).round() / 2

    return make


@pytest.fixture(scope="session")
def chi_square():
    """Whether counts agree with probabilities; false alarms about once in 10,000 calls."""

    def agrees(counts, probabilities):
        total = sum(counts)
        assert all(c == 0 for c, p in zip(counts, probabilities, strict=True) if p == 0)
        cells = [(c, p * total) for c, p in zip(counts, probabilities, strict=True) if p > 0]
        statistic = sum((c - e) ** 2 / e for c, e in cells)
        # Wilson and Hilferty 1931: the cube root of chi square over its degrees is normal.
        degrees = max(len(cells) - 1, 1)
        spread = 2 / (9 * degrees)
        return ((statistic / degrees) ** (1 / 3) - (1 - spread)) / spread**0.5 < 3.7

    return agrees
