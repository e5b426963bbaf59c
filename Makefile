# `make help` lists what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CUDA_STAMP := $(VENV)/.cuda-installed
DEMO_STAMP := $(VENV)/.demo-installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help venv demo test cuda-libraries test-cuda test-ray lint prove mutate fuzz bench searches conformance docs clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) --editable '.[test]'
	touch $(STAMP)

venv: $(STAMP) ## create .venv with everything installed

$(DEMO_STAMP): $(STAMP)
	$(PIP) --no-deps 'rapidocr-onnxruntime==1.4.4'
	touch $(DEMO_STAMP)

demo: $(DEMO_STAMP) ## optimise a real, trained model and print what came out
	@$(BIN)/python -m bench.demo

test: venv ## lint, types, tests
	$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 15

test-ray: venv ## jobs on a Ray cluster of two local nodes, one of which is killed
	$(PIP) --editable '.[ray]'
	$(BIN)/python -m pytest tests/runtime/test_runner.py

$(CUDA_STAMP): $(STAMP)
	$(PIP) --editable '.[test,cuda]'
	touch $(CUDA_STAMP)

cuda-libraries: $(CUDA_STAMP) ## install CUDA's libraries (3 GB) into .venv

test-cuda: $(CUDA_STAMP) ## what needs CUDA's libraries, and no GPU: plans, compilation, the recorded device
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -rs tests/lower/test_cuda_*.py tests/runtime/test_cuda_*.py

lint: venv ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers 2

prove: venv ## prove the rules that changed; writes egraph/rules/certificates.json
	$(BIN)/python -m verify --shipped --write

mutate: venv ## judge 2,000 mutants of the shipped rules, or the rest; writes bench/results/mutation.*
	$(BIN)/python -m bench.mutation --mutants 2000 --results bench/results --progress build/mutation.jsonl

fuzz: venv ## random graphs and random rule instances for ten minutes
	$(BIN)/python -m pytest -m slow --hypothesis-profile random tests/project/test_fuzz.py tests/egraph/partial tests/verify/test_disagreement.py --timeout 1200

conformance: venv ## every node test of the ONNX backend suite through Session
	$(BIN)/python -m bench.conformance

bench: venv ## time every model against onnxruntime, OpenVINO and others; writes bench/results/
	$(PIP) --editable '.[bench]'
	$(BIN)/python -m bench.run

searches: venv ## derive the four published targets and prove what is found; writes bench/results/searches.*
	$(BIN)/python -m bench.searches

docs: venv ## write the generated pages of docs/
	$(BIN)/python -m tests.pages

clean: ## remove what was built here
	rm -rf $(VENV) build *.egg-info demo
