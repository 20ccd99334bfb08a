//! The metrics of a program: what all programs register, and the response to a scrape.

use std::fmt;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::text;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// The media type of OpenMetrics 1.0.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Registers the version of a program, and returns the registry for its metrics, whose names begin with the prefix.
pub fn program_registry<'a>(
    root: &'a mut Registry,
    prefix: &str,
    program: &str,
    version: &'static str,
) -> &'a mut Registry {
    let registry = root.sub_registry_with_prefix(prefix);
    registry.register("build", format!("The {program}'s version"), Info::new([("version", version)]));
    registry
}

/// The metrics as text.
///
/// # Errors
/// If a metric cannot be formatted.
pub fn exposition(registry: &Registry) -> Result<String, fmt::Error> {
    let mut exposition = String::new();
    text::encode(&mut exposition, registry)?;
    Ok(exposition)
}

/// The response to a scrape; status 500 without an exposition.
pub fn scrape_response(exposition: Result<String, fmt::Error>) -> Response {
    match exposition {
        Ok(exposition) => ([(CONTENT_TYPE, OPEN_METRICS)], exposition).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_of_program_has_version_and_prefix() {
        let mut root = Registry::default();
        program_registry(&mut root, "shop", "counter", "1.2.3");
        let exposition = exposition(&root).unwrap();
        assert!(exposition.contains("# HELP shop_build The counter's version."), "{exposition}");
        assert!(exposition.contains("shop_build_info{version=\"1.2.3\"} 1"), "{exposition}");
        let response = scrape_response(Ok(exposition));
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[CONTENT_TYPE], OPEN_METRICS);
    }
}
