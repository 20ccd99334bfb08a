# The image of a node: ringfence (agent, install-cni, uninstall, ...) and the CNI plugin that install-cni copies out. And of
# the provider of context, ringfence-context.
#
#   docker build --tag ringfence:0.1.0 .

FROM rust:1.95.0-slim-bookworm AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates pkg-config libnftnl-dev=1.2.4-2 libmnl-dev=1.0.4-3
WORKDIR /src
COPY . .
# The node runs the plugin, with whatever libc it has or has not: it brings its own.
RUN cargo build --release --locked --package agent --package context \
 && cargo rustc --release --locked --package cni --bin ringfence-cni -- -C target-feature=+crt-static \
 && install -D --strip --target-directory=/image/usr/local/bin target/release/ringfence \
      target/release/ringfence-cni target/release/ringfence-context
# Beside them: what they are linked with, a program that does nothing (deploy/uninstall.yaml), the authorities that a relay's
# certificate is checked against, and the terms of all.
RUN install -D --target-directory=/image/bin /bin/sleep \
 && ldd /image/usr/local/bin/ringfence /image/usr/local/bin/ringfence-context /image/bin/sleep | sed -n -E 's/^.*[[:space:]](\/[^ ]+) \(.*$/\1/p' | sort -u \
  | xargs cp --parents --dereference --target-directory=/image \
 && cp --parents --dereference /etc/ssl/certs/ca-certificates.crt /image \
 && cp --parents /usr/share/doc/libnftnl11/copyright /usr/share/doc/libmnl0/copyright /usr/share/doc/libc6/copyright \
      /usr/share/doc/ca-certificates/copyright /image \
 && install -D --mode=644 --target-directory=/image/usr/share/doc/ringfence LICENSE

FROM scratch
COPY --from=build /image /
LABEL org.opencontainers.image.title="ringfence" \
      org.opencontainers.image.description="Kubernetes NetworkPolicy on one node, enforced with nftables" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# Netlink asks for CAP_NET_ADMIN, which only root gets from a container runtime.
USER 0:0
ENTRYPOINT ["/usr/local/bin/ringfence"]
CMD ["--help"]
