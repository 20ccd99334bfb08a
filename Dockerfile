# The image of a node: ringfence (agent, install-cni, uninstall, ...) and the CNI plugin that install-cni copies out.
#
#   docker build --tag ringfence:0.1.0 .

FROM rust:1.95.0-slim-bookworm AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends pkg-config libnftnl-dev=1.2.4-2 libmnl-dev=1.0.4-3
WORKDIR /src
COPY . .
# The node runs the plugin, with whatever libc it has or has not: it brings its own.
RUN cargo build --release --locked --package agent \
 && cargo rustc --release --locked --package cni --bin ringfence-cni -- -C target-feature=+crt-static \
 && install -D --strip --target-directory=/out target/release/ringfence target/release/ringfence-cni \
 && cp LICENSE /out/

FROM debian:12-slim@sha256:b4aa902587c2e61ce789849cb54c332b0400fe27b1ee33af4669e1f7e7c3e22f
RUN apt-get update \
 && apt-get install --yes --no-install-recommends libnftnl11=1.2.4-2 libmnl0=1.0.4-3 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/ringfence /out/ringfence-cni /usr/local/bin/
# The libraries' own terms are in /usr/share/doc/libnftnl11 and /usr/share/doc/libmnl0.
COPY --from=build /out/LICENSE /usr/share/doc/ringfence/
LABEL org.opencontainers.image.title="ringfence" \
      org.opencontainers.image.description="Kubernetes NetworkPolicy on one node, enforced with nftables" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# Netlink asks for CAP_NET_ADMIN, which only root gets from a container runtime.
USER 0:0
ENTRYPOINT ["/usr/local/bin/ringfence"]
CMD ["--help"]
