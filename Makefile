# Taupe's front door. Each target sets up what it needs; see README.md.
#
#   make build      target/release/taupe, and taupe-web, which serves the page of `taupe web`
#                   [AUDITABLE=1: with the list of crates, by cargo-auditable, which must be installed]
#   make service    target/release/taupe-dbus, for users without root
#   make library    target/library/libtaupe.a and libtaupe.so, for programs in C and C++
#                   [JAVA=1: and in Java]
#   make windows    target/windows/x86_64 and i686: taupe.exe, taupe.dll and what links with it
#   make arm64      target/cross/aarch64-unknown-linux-gnu/taupe
#   make musl       target/cross/x86_64-unknown-linux-musl/taupe, taupe-web and the same for aarch64: static
#   make packages   target/packages: .deb, .rpm, static archives and container images
#   make release    the same with the list of crates, checksums and, with SIGNING_KEY=FILE, a signature
#   make book       target/book/html: the documentation with a search
#   make install    PREFIX=/usr/local DESTDIR= [ALIASES=1: as wg and wg-quick too]
#                   [LIBRARY=1: with the library, its headers and taupe.pc;
#                   LIBDIR=, INCLUDEDIR= where those go] [SERVICE=1: for users without root]
#   make uninstall  PREFIX=/usr/local DESTDIR= [LIBDIR=, INCLUDEDIR=]
#   make demo       one application through a tunnel and nothing else, with evidence;
#                   KEEP=1 leaves its network namespaces for you to look at,
#                   CAST=FILE also writes a recording for asciinema
#   make demo-pq    the post-quantum tutorial (docs/tutorial-post-quantum.md), followed
#   make test       everything that CI runs
#   make test-long  tests that take hours: whole emulated machines, fuzzing, long simulations
#   make bench      Taupe beside other programs, with every published table; 10 minutes
#   make bench-full all of it, ten rounds; hours
#   make bench-micro  single steps: encrypt, cut, merge and translate packets, handshakes
#   make simulate   HOURS=N [SEED=S], or DEFECT=NAME: finds a defect that scripts/defects plants
#   make fuzz       SECONDS_EACH=N for each target (needs a nightly toolchain)
#   make check      formatting, lints, licences

SHELL := /bin/bash
# Arguments of `make bench`, such as BENCH="--contestants direct,taupe --only throughput".
BENCH ?=
# The steps that `make bench-micro` measures, such as MICRO=checksum.
MICRO ?=
HOURS ?= 2000
SECONDS_EACH ?= 60
SIMULATE := cargo run --quiet --profile simulate -p taupe-simulator --no-default-features --features fake --

.PHONY: build pages service library windows arm64 musl packages release book install uninstall demo demo-pq test test-long bench bench-full bench-micro simulate fuzz check clean
.DEFAULT_GOAL := build

# No path of this machine goes into what these build, and the version names the commit. They have that
# in common, so what one of them has built is not built again by another.
build pages service library musl packages demo demo-pq bench bench-full: export RUSTC_WRAPPER ?= $(CURDIR)/scripts/rustc
build pages service library musl packages demo demo-pq bench bench-full: export TAUPE_VERSION ?= $(shell scripts/version)

build: .build-packages
	cargo $(if $(AUDITABLE),auditable) build --release -p taupe
	cargo $(if $(AUDITABLE),auditable) build --release -p taupe-web

# Manual pages and shell completions.
pages: .build-packages
	cargo run --quiet --release -p taupe --example pages -- "$${CARGO_TARGET_DIR:-target}/release/pages"

# Apart from taupe, which would get the features that this program needs of their common libraries.
service: .build-packages
	cargo build --release -p taupe-dbus

library: .build-packages
	@JAVA='$(JAVA)' packaging/library

windows:
	@scripts/packages build windows
	@scripts/windows

arm64:
	@scripts/packages build arm64
	@scripts/cross build aarch64-unknown-linux-gnu

musl:
	@scripts/packages build musl
	@scripts/cross build x86_64-unknown-linux-musl aarch64-unknown-linux-musl

PACKAGES := $${CARGO_TARGET_DIR:-target}/packages

packages: build pages service library musl
	@scripts/packages build packages
	@rm -rf "$(PACKAGES)"
	@for kind in deb rpm tarball image; do packaging/$$kind "$(PACKAGES)" || exit; done

book:
	@scripts/book

release: packages
	@packaging/release "$(PACKAGES)"

# Root does not need cargo for it: `make build pages && sudo make install`.
install: $(if $(shell command -v cargo 2>/dev/null),build pages $(if $(LIBRARY),library) $(if $(SERVICE),service))
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' ALIASES='$(ALIASES)' LIBRARY='$(LIBRARY)' SERVICE='$(SERVICE)' \
		LIBDIR='$(LIBDIR)' INCLUDEDIR='$(INCLUDEDIR)' packaging/install

uninstall:
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' LIBDIR='$(LIBDIR)' INCLUDEDIR='$(INCLUDEDIR)' \
		packaging/install --uninstall

# Both at once: apart, they would have some dependencies built twice.
demo: .demo-packages
	cargo build --release -p taupe -p taupe-lab --bin taupe --bin taupe-demo
	@"$${CARGO_TARGET_DIR:-target}/release/taupe-demo"

demo-pq: .demo-packages
	cargo build --release -p taupe -p taupe-lab --bin taupe --bin taupe-demo
	@"$${CARGO_TARGET_DIR:-target}/release/taupe-demo" --post-quantum

test:
	@scripts/test

test-long:
	@scripts/test --long

# Both at once, like the demo: whatever `make build` has built is not built again.
bench bench-full: .bench-packages
	cargo build --release -p taupe -p taupe-bench --bin taupe --bin taupe-lab
	@"$${CARGO_TARGET_DIR:-target}/release/taupe-lab" run $(if $(filter bench-full,$@),--full) \
		--out "$${CARGO_TARGET_DIR:-target}/lab" $(BENCH)

bench-micro: .build-packages
	cargo bench -p taupe-crypto -p taupe-ffi -p taupe-nat -p taupe-packet -p taupe-protocol -p taupe-repro --bench '*' -- $(MICRO)

simulate:
	@$(if $(DEFECT),scripts/defects $(DEFECT),$(SIMULATE) --hours $(HOURS) $(if $(SEED),--seed $(SEED)))

fuzz:
	@scripts/fuzz $(SECONDS_EACH)

# Formatting, lints, licences: what must hold before anything is built.
check: .build-packages
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	scripts/deny
	scripts/vendored

.PHONY: .build-packages .demo-packages .bench-packages
.build-packages:
	@scripts/packages build

.demo-packages:
	@scripts/packages build demo

.bench-packages:
	@scripts/packages build bench

clean:
	cargo clean
