# The image of all components: ringfence (agent, install-cni, uninstall, ...) with the CNI plugin that install-cni copies to the
# node, the context provider ringfence-context, and the aggregator of flow records ringfence-flows.
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
# Netlink requires CAP_NET_ADMIN, which a container runtime grants to root only.
USER 0:0
ENTRYPOINT ["/usr/local/bin/ringfence"]
CMD ["--help"]
