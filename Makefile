# The one entry point for people; CI runs the same. `make help` lists the targets.

SHELL := /bin/bash
TARGET := $(or $(CARGO_TARGET_DIR),target)
# The parts of Mend, side by side, as they are found when installed.
PARTS := target/mend
PREFIX ?= /usr/local
MINUTES ?= 60
# A soak's failure is repeated with the seed it printed.
SEED ?= $(shell date +%s)
SECONDS ?= 10
LIBRARY := crates/node/space-library
RESTORER := crates/rank/restorer
# One for each zone of addresses (mend_image::ZONES).
RESTORERS := mend-restorer mend-restorer-1 mend-restorer-2
INSTALL := install -D -m 755

.PHONY: help setup setup-demo build app demo test bench soak conformance fuzz lint clean install

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## install what build, demo and tests need (quick when it is there)
	@./tests/setup.sh

setup-demo:
	@./tests/setup.sh demo

build: ## build Mend's parts into target/mend
	umask 022 && cargo build --release --locked --package mend-cli --package mend-daemon --package mend-bucket --package mend-chunks --package mend-object --package mend-pipe --package mend-space --package mend-space-library --package mend-staging --package mend-preload
	umask 022 && cd $(RESTORER) && cargo build --release --locked --target-dir $(abspath $(TARGET))/restorer
	@$(INSTALL) $(TARGET)/release/mend $(PARTS)/mend
	@$(INSTALL) $(TARGET)/release/mendd $(PARTS)/mendd
	@$(INSTALL) $(TARGET)/release/mend-object $(PARTS)/mend-object
	@$(INSTALL) $(TARGET)/release/mend-bucket $(PARTS)/mend-bucket
	@$(INSTALL) $(TARGET)/release/mend-chunks $(PARTS)/mend-chunks
	@$(INSTALL) $(TARGET)/release/mend-data $(PARTS)/mend-data
	@$(INSTALL) $(TARGET)/release/mend-space $(PARTS)/mend-space
	@$(INSTALL) $(TARGET)/release/mend-pipe $(PARTS)/mend-pipe
	@$(INSTALL) $(TARGET)/release/libmend_space_library.so $(PARTS)/libmend-data.so
	@$(INSTALL) $(LIBRARY)/include/mend_data.h $(PARTS)/include/mend_data.h
	@$(INSTALL) $(LIBRARY)/python/mend_data.py $(PARTS)/python/mend_data.py
	@$(INSTALL) plugins/mend-source-tar $(PARTS)/mend-source-tar
	@$(INSTALL) $(TARGET)/release/libmend_fi.so $(PARTS)/libmend-fi.so
	@for name in $(RESTORERS); do $(INSTALL) $(TARGET)/restorer/release/$$name $(PARTS)/$$name; done
	@git -c safe.directory='*' describe --always --dirty=+ --abbrev=12 > $(PARTS)/built-from 2>/dev/null || rm -f $(PARTS)/built-from

app: ## build libmend-app (portable checkpoints) and mend-cc into target/app; needs cmake, zlib1g-dev, libxxhash-dev
	@$(MAKE) --no-print-directory -C app/lib OUT=$(abspath target/app)

demo: setup-demo build ## the main job end to end: a LAMMPS rank moves, a node dies, the result stays the same
	@./tests/demo/demo.py

test: setup build ## all tiers of tests; the last line sums them up
	@./tests/run.py

lint: setup ## format, clippy and house rules only
	@./tests/run.py format clippy house

bench: setup build ## measure what SPECIFICATION.md promises; figures go to docs/results
	@./benches/one_node.py --record
	@./benches/network.py --record
	@./benches/images.py --record
	@./benches/migration.py --record
	@./benches/moving_cost.py --record --runs 3
	@./benches/placement.py --record
	@./benches/pipe.py --record
	@./benches/copies.py --record
	@./benches/data.py --record --runs 3
	@./benches/healing.py --record
	@./benches/checkpoints.py --record
	@./benches/restart.py --record
	@./benches/tracking.py --record
	@./benches/rivals.py --record
	@./tests/setup.sh app
	@$(MAKE) --no-print-directory app
	@./benches/app.py --record
	@[ "$$(id -u)" -ne 0 ] || ./benches/app_moves.py --record
	@./benches/render.py

soak: setup build ## all that is drawn by a seed, at length: messages, changes to memory, events, power failures, kill points, damages; about MINUTES (default 60; 0: all of it)
	cargo build --release --locked --workspace --bin mend-powerloss
	@./tests/soak.py --minutes $(MINUTES) --seed $(SEED)

conformance: build ## MPI's whole surface at length: own programs, IMB, mpi4py's tests, fi_pingpong; portable checkpoints on other machines (a quarter of an hour)
	@./tests/setup.sh conformance
	@./tests/lab/conformance.py
	@./tests/setup.sh app
	@./app/lib/tests/foreign.py
	@./app/compiler/tests/thorough.sh

fuzz: setup ## every fuzz target for SECONDS each (default 10)
	@./fuzz/run.py --seconds $(SECONDS)

install: ## install under PREFIX (default /usr/local): bin/mend, bin/mendd, lib/mend/, include/mend_data.h; libmend-app and mend-cc if `make app` has built them
	@if command -v cargo >/dev/null; then $(MAKE) --no-print-directory build; elif [ ! -x $(PARTS)/mend ]; then echo 'install: run `make build` first, as the user who has Rust' >&2; exit 1; fi
	$(INSTALL) $(PARTS)/mend $(DESTDIR)$(PREFIX)/bin/mend
	$(INSTALL) $(PARTS)/mendd $(DESTDIR)$(PREFIX)/bin/mendd
	$(INSTALL) $(PARTS)/mend-object $(DESTDIR)$(PREFIX)/lib/mend/mend-object
	$(INSTALL) $(PARTS)/mend-bucket $(DESTDIR)$(PREFIX)/lib/mend/mend-bucket
	$(INSTALL) $(PARTS)/mend-data $(DESTDIR)$(PREFIX)/lib/mend/mend-data
	$(INSTALL) $(PARTS)/mend-space $(DESTDIR)$(PREFIX)/lib/mend/mend-space
	$(INSTALL) $(PARTS)/mend-chunks $(DESTDIR)$(PREFIX)/lib/mend/mend-chunks
	$(INSTALL) $(PARTS)/mend-pipe $(DESTDIR)$(PREFIX)/lib/mend/mend-pipe
	$(INSTALL) $(PARTS)/libmend-data.so $(DESTDIR)$(PREFIX)/lib/mend/libmend-data.so
	$(INSTALL) $(PARTS)/include/mend_data.h $(DESTDIR)$(PREFIX)/include/mend_data.h
	$(INSTALL) $(PARTS)/python/mend_data.py $(DESTDIR)$(PREFIX)/lib/mend/python/mend_data.py
	$(INSTALL) $(PARTS)/mend-source-tar $(DESTDIR)$(PREFIX)/lib/mend/mend-source-tar
	$(INSTALL) $(PARTS)/libmend-fi.so $(DESTDIR)$(PREFIX)/lib/mend/libmend-fi.so
	for name in $(RESTORERS); do $(INSTALL) $(PARTS)/$$name $(DESTDIR)$(PREFIX)/lib/mend/$$name; done
	@if [ -e target/app/bin/mend-cc ]; then $(MAKE) --no-print-directory -C app/lib install OUT=$(abspath target/app) PREFIX=$(abspath $(PREFIX)) DESTDIR=$(if $(DESTDIR),$(abspath $(DESTDIR))); \
	elif [ -e target/app/lib/libmend-app.so ]; then echo 'install: libmend-app and mend-cc are not installed: target/app is of an older release. Run `make app` again' >&2; fi

clean: ## remove what was built; .venv stays
	cargo clean
	rm -rf target $(RESTORER)/target fuzz/target
