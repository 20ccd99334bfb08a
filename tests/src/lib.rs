//! Generators of objects, fuzzing, and clients and servers that only tests and fuzz targets use.

pub mod certificates;
pub mod chromium;
pub mod cutting_proxy;
pub mod dns_server;
pub mod fake_bucket;
pub mod fake_clock;
pub mod fake_goldmane;
pub mod fake_relay;
pub mod fuzzing;
pub mod generate;
pub mod goldmane_client;
pub mod grpc_bytes;
pub mod hubble_client;
pub mod objects;
pub mod shared_memory;
pub mod tls_server;
