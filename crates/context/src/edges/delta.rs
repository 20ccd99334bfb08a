//! The delta of declared edges, as it is pushed and streamed.

use serde::{Deserialize, Serialize};

/// The lines added and removed since the previous delta, without line breaks, sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeDelta {
    pub epoch: u64,
    pub seq: u64,
    pub adds: Vec<String>,
    pub removes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delta_is_the_json_that_consumers_know() {
        let delta = EdgeDelta { epoch: 7, seq: 1, adds: vec!["G shop/web".into()], removes: vec![] };
        let json = r#"{"epoch":7,"seq":1,"adds":["G shop/web"],"removes":[]}"#;
        assert_eq!(serde_json::to_string(&delta).unwrap(), json);
        assert_eq!(serde_json::from_str::<EdgeDelta>(json).unwrap(), delta);
    }
}
