//! Sources of the verbs that read published data.

use std::path::PathBuf;

use super::StoreUrl;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DataSource {
    /// A running provider.
    Served(reqwest::Url),
    /// A store that `serve --store` writes.
    Store(StoreUrl),
    /// A folder that `build` wrote, or a single file of it.
    Path(PathBuf),
}

impl DataSource {
    pub(crate) fn is_provider(&self) -> bool {
        match self {
            DataSource::Served(_) => true,
            DataSource::Store(_) | DataSource::Path(_) => false,
        }
    }

    /// True if the source is a single file, one part of a baseline.
    pub(crate) fn is_file(&self) -> bool {
        match self {
            DataSource::Path(path) => path.is_file(),
            DataSource::Served(_) | DataSource::Store(_) => false,
        }
    }
}

impl std::str::FromStr for DataSource {
    type Err = String;

    fn from_str(text: &str) -> Result<DataSource, String> {
        match text.split_once("://").map(|(scheme, _)| scheme) {
            Some("http" | "https") => text.parse().map(DataSource::Served).map_err(|e| format!("{e}")),
            Some(_) => text.parse().map(DataSource::Store),
            None if text.is_empty() => Err("empty value".into()),
            None => Ok(DataSource::Path(text.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_parses_as_provider_store_or_path() {
        let source = |text: &str| text.parse::<DataSource>();
        assert!(matches!(source("http://127.0.0.1:9471"), Ok(DataSource::Served(_))));
        assert!(matches!(source("s3://bucket/prefix"), Ok(DataSource::Store(_))));
        assert!(matches!(source("file:///tmp/x"), Ok(DataSource::Store(_))));
        assert!(matches!(source("out/identity.mmdb"), Ok(DataSource::Path(_))));
        assert!(source("ftp://x").is_err() && source("").is_err());
    }
}
