//! Arguments of `ringfence agent` for sending flow records to the aggregator.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use delivery::DeliveryTarget;
use feed::Access;

#[derive(Debug, Args)]
#[command(next_help_heading = "Aggregator of flow records")]
pub(crate) struct FlowDeliveryArguments {
    /// URL of the aggregator that flow records are sent to, as https://HOST:PORT. With dns+https://HOST:PORT, each address of
    /// the host name is an aggregator that receives every record, as with replicas behind a headless Service. While an
    /// aggregator does not respond, records for it are buffered. Needs --flows on.
    #[arg(long, env = "RINGFENCE_FLOW_SERVER", value_name = "URL")]
    pub(crate) flow_server: Option<String>,

    /// File with the bearer token for the aggregator; reread for each call.
    #[arg(long, env = "RINGFENCE_FLOW_SERVER_TOKEN_FILE", value_name = "FILE", requires = "flow_server")]
    flow_server_token_file: Option<PathBuf>,

    /// File with the CA certificates (PEM) for the aggregator; reread for each connection. Default: the CA certificates of
    /// the system.
    #[arg(long, env = "RINGFENCE_FLOW_SERVER_CA_FILE", value_name = "FILE", requires = "flow_server")]
    flow_server_ca_file: Option<PathBuf>,

    /// File with the client certificate (PEM) for the aggregator; reread for each connection.
    #[arg(long, env = "RINGFENCE_FLOW_SERVER_CERT", value_name = "FILE", requires_all = ["flow_server_key", "flow_server"])]
    flow_server_cert: Option<PathBuf>,

    /// File with the private key of the client certificate (PEM); reread for each connection.
    #[arg(long, env = "RINGFENCE_FLOW_SERVER_KEY", value_name = "FILE", requires_all = ["flow_server_cert", "flow_server"])]
    flow_server_key: Option<PathBuf>,
}

impl FlowDeliveryArguments {
    /// Where records are sent; `None` if delivery is off.
    ///
    /// # Errors
    /// If the URL is invalid, or credentials would be sent without TLS.
    pub(crate) fn target(&self) -> anyhow::Result<Option<DeliveryTarget>> {
        let Some(url) = &self.flow_server else { return Ok(None) };
        let access =
            Access { token_file: self.flow_server_token_file.clone(), ca_file: self.flow_server_ca_file.clone() };
        let certificate = self.flow_server_cert.clone().zip(self.flow_server_key.clone());
        DeliveryTarget::new(url, access, certificate).map(Some).context("--flow-server")
    }
}
