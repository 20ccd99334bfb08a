# The image of a node: ringfence (agent, install-cni, uninstall, ...) and the CNI plugin that install-cni copies out. And of
# the provider of context, ringfence-context, and the aggregator of flow records, ringfence-flows.
#
#   docker build --tag ringfence:0.1.0 .

FROM rust:1.95.0-slim-bookworm AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates pkg-config libnftnl-dev=1.2.4-2 libmnl-dev=1.0.4-3
WORKDIR /src
COPY . .
RUN scripts/image /image

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
