# Taupe's front door. Each target sets up what it needs; see README.md.
#
#   make build      target/release/taupe
#   make demo       a tunnel between two hosts, with evidence
#   make test       everything that CI runs
#   make test-long  what does not fit there
#   make simulate   HOURS=N [SEED=S] [DEFECT=NAME]
#   make fuzz       SECONDS_EACH=N for each target (needs a nightly toolchain)
#   make check      formatting, lints, licences

SHELL := /bin/bash
HOURS ?= 2000
SECONDS_EACH ?= 60
SIMULATE := cargo run --quiet --profile simulate -p taupe-simulator --no-default-features --features fake,planted-defects --

.PHONY: build demo test test-long simulate fuzz check clean
.DEFAULT_GOAL := build

build: .build-packages
	cargo build --release -p taupe

demo: build .demo-packages
	@echo "building the demo"
	@cargo run --quiet --release -p taupe-lab --bin taupe-demo

test:
	@scripts/test

test-long:
	@scripts/test --long

simulate:
	@$(SIMULATE) --hours $(HOURS) $(if $(SEED),--seed $(SEED)) $(if $(DEFECT),--defect $(DEFECT))

fuzz:
	@scripts/fuzz $(SECONDS_EACH)

# Formatting, lints, licences: what must hold before anything is built.
check: .build-packages
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	scripts/deny

.PHONY: .build-packages .demo-packages
.build-packages:
	@scripts/packages build

.demo-packages:
	@scripts/packages build demo

clean:
	cargo clean
