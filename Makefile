# Commands for development. `make` without a target lists them.

.DEFAULT_GOAL := help
.PHONY: help packages build plugin test soak-flows test-cluster alerts demo demo-context demo-remote demo-flows page screenshots bench lint deny docs fuzz manifests install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

packages: ## install the Debian packages that building and testing need
	@./scripts/packages

build: packages ## build all binaries
	cargo build --workspace

plugin: ## build the CNI plugin for release, without shared libraries
	cargo rustc --release --package cni --bin ringfence-cni -- -C target-feature=+crt-static

test: build ## run every test, as root
	./scripts/test

soak-flows: build ## compare flow records of 200,000 connections with counters and ulogd2, as root; takes minutes (FLOW_CONNECTIONS=N)
	@./scripts/packages ulogd
	FLOW_CONNECTIONS=$${FLOW_CONNECTIONS:-200000} cargo test --package tests --test all -- --nocapture flows::totals

test-cluster: packages ## run the tests on a real cluster of two nodes, as root (KUBE_BIN=DIR; ARGS='--help' lists options)
	./scripts/test-cluster $(ARGS)

alerts: ## check and test the alert rules with promtool (PROMTOOL=FILE); skipped without it
	@./scripts/alerts

# The profile of demos. Their own builds fastest, from nothing; with `dev` they are those that `make build` has built.
DEMO_PROFILE ?= demo
DEMO_DIR = target/$(subst dev,debug,$(DEMO_PROFILE))
build_demo = cargo build --profile $(DEMO_PROFILE) $(if $(filter dev,$(DEMO_PROFILE)),--workspace,$(addprefix --package ,$(1)))

# The builds of demos show cargo's progress: the first one takes minutes.
demo: packages ## two nodes and a shop of pods on this machine: without an agent, with one, and a change (ARGS=--keep leaves them running)
	@$(call build_demo,agent demos)
	@$(DEMO_DIR)/demo $(ARGS)

demo-context: packages ## identities of addresses and declared edges: baselines, a moved pod, a changed policy (no root)
	@$(call build_demo,context demos)
	@$(DEMO_DIR)/demo-context $(ARGS)

demo-remote: packages ## pods of one cluster admitted by a policy of another: a change, an outage, a recovery
	@$(call build_demo,agent context demos)
	@$(DEMO_DIR)/demo-remote $(ARGS)

demo-flows: packages ## the shop on two nodes with an aggregator and its trail: an outage of the receiver, and the catch-up (2 minutes)
	@$(call build_demo,agent aggregator demos)
	@$(DEMO_DIR)/demo-flows

page: packages ## the page of the aggregator with generated flows of 300 workloads (ARGS='127.0.0.1:9476 0': of the shop; no root)
	@$(call build_demo,aggregator demos)
	@$(DEMO_DIR)/page $(ARGS)

screenshots: packages ## write pictures of the page's screens at 1440 and 800 pixels to target/screenshots (SCREENSHOTS=DIR)
	SCREENSHOTS=$${SCREENSHOTS:-$(CURDIR)/target/screenshots} cargo test --package tests --test all -- aggregator::page::pictures aggregator::page::declared_map

bench: packages ## measure the costs of enforcement on this machine, as root (ARGS='drops --rounds 9'; ARGS=--help lists options)
	@cargo build --quiet --release --package agent --package aggregator --package cni --package context --package bench --bins
	@target/release/bench $(ARGS)

lint: packages ## formatting and clippy, warnings as errors
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

deny: ## check licences, sources and bans of the dependencies; ARGS=advisories downloads the RustSec database
	./scripts/deny $(ARGS)

docs: packages ## API documentation, warnings as errors
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

fuzz: packages ## build the fuzz targets and run each for FUZZ_SECONDS (12), as root (ARGS=keep renews their seeds)
	./scripts/fuzz $(ARGS)

manifests: build ## write deploy/install.yaml from deploy/base
	UPDATE_EXPECT=1 cargo test --package tests --test all -- deploy::manifests::install_yaml

clean: ## remove build output
	cargo clean
