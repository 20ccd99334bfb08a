//! Sources of the verbs that read published data.

use std::path::PathBuf;

use super::StoreUrl;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// A running provider.
    Served(reqwest::Url),
    /// A store that `serve --store` writes.
    Store(StoreUrl),
    /// A folder that `build` wrote, or a single file of it.
    Path(PathBuf),
}

impl Source {
    pub(crate) fn is_provider(&self) -> bool {
        match self {
            Source::Served(_) => true,
            Source::Store(_) | Source::Path(_) => false,
        }
    }

    /// True if the source is a single file, one part of a baseline.
    pub(crate) fn is_file(&self) -> bool {
        match self {
            Source::Path(path) => path.is_file(),
            Source::Served(_) | Source::Store(_) => false,
        }
    }
}

impl std::str::FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        match text.split_once("://").map(|(scheme, _)| scheme) {
            Some("http" | "https") => text.parse().map(Source::Served).map_err(|e| format!("{e}")),
            Some(_) => text.parse().map(Source::Store),
            None if text.is_empty() => Err("empty value".into()),
            None => Ok(Source::Path(text.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_parses_as_provider_store_or_path() {
        let source = |text: &str| text.parse::<Source>();
        assert!(matches!(source("http://127.0.0.1:9471"), Ok(Source::Served(_))));
        assert!(matches!(source("s3://bucket/prefix"), Ok(Source::Store(_))));
        assert!(matches!(source("file:///tmp/x"), Ok(Source::Store(_))));
        assert!(matches!(source("out/identity.mmdb"), Ok(Source::Path(_))));
        assert!(source("ftp://x").is_err() && source("").is_err());
    }
}
