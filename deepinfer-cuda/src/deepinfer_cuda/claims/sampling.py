"""The sampler: masks, penalties, stages, draws and log-probabilities."""

from __future__ import annotations

from deepinfer_cuda.claims.claim import claim

LOGITS = ("float32",)

KERNELS = (
    claim("sample.mask", "sample:mask", dtypes=LOGITS, numerics="exact"),
    claim("sample.penalties", "sample:penalties", dtypes=LOGITS),
    claim("sample.draw", "sample:draw", dtypes=LOGITS, numerics="exact"),
    claim("sample.stages", "sample_stages:stages", dtypes=LOGITS),
    claim("sample.logprobs", "sample_logprobs:logprobs", dtypes=LOGITS),
)
