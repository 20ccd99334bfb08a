//! TokenReview (authentication.k8s.io/v1): the API server authenticates a bearer token.

use kube::api::PostParams;
use kube::core::Request;
use serde_json::{Value, json};

use crate::watch::failure::Verb;
use crate::watch::lookup::within;
use crate::{ApiClient, Keep, Manifests, Need, Resource};

const TOKEN_REVIEWS: Resource = Resource {
    plural: "tokenreviews",
    group: "authentication.k8s.io",
    version: "v1",
    alternatives: &[],
    need: Need::Needed,
    manifests: Manifests::OfGroup,
    keep: Keep::Whole,
    only: None,
};

/// The extra user attribute of tokens that are bound to a pod on a node (KEP-4193).
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// The user that a token authenticates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviewedUser {
    pub name: String,
    pub groups: Vec<String>,
    /// The node of the pod that the token is bound to (Kubernetes 1.30 and later); `None` for other tokens.
    pub node: Option<String>,
}

/// The API server's decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenReview {
    Authenticated(ReviewedUser),
    /// The token is invalid, expired, revoked, or for another audience.
    Rejected,
}

/// Authenticates a token for these audiences. The error includes the remedy, never the token.
///
/// # Errors
/// If the API server does not decide.
pub async fn review_token(connection: &ApiClient, token: &str, audiences: &[String]) -> Result<TokenReview, String> {
    let client = connection.client().await.map_err(|failure| failure.explain(TOKEN_REVIEWS))?;
    let body = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": audiences},
    });
    let request = Request::new(format!("{}/{}", TOKEN_REVIEWS.path(), TOKEN_REVIEWS.plural))
        .create(&PostParams::default(), body.to_string().into_bytes())
        .map_err(|error| error.to_string())?;
    let answer = within(connection.timing.answer, Verb::Create, client.request::<Value>(request)).await;
    decision(&answer.map_err(|failure| failure.explain(TOKEN_REVIEWS))?, audiences)
}

/// The decision in a TokenReview response. An API server that does not support audiences authenticates a token without
/// returning any: it counts as rejected, as the API documentation requires of audience-aware clients.
fn decision(review: &Value, audiences: &[String]) -> Result<TokenReview, String> {
    let status = &review["status"];
    if status["authenticated"].as_bool() != Some(true) {
        return Ok(TokenReview::Rejected);
    }
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
    };
    if !texts(&status["audiences"]).iter().any(|audience| audiences.contains(audience)) {
        return Ok(TokenReview::Rejected);
    }
    match status["user"]["username"].as_str().filter(|name| !name.is_empty()) {
        Some(name) => Ok(TokenReview::Authenticated(ReviewedUser {
            name: name.to_owned(),
            groups: texts(&status["user"]["groups"]),
            node: texts(&status["user"]["extra"][NODE_NAME]).into_iter().next(),
        })),
        None => Err("the API server authenticated a token without a user name".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(status: Value) -> Result<TokenReview, String> {
        decision(&json!({"status": status}), &["ringfence-context".to_owned()])
    }

    #[test]
    fn token_review_names_user_groups_and_node() {
        let user = json!({"username": "u", "groups": ["a", "b"], "extra": {NODE_NAME: ["worker-1"]}});
        let status = json!({"authenticated": true, "user": user, "audiences": ["other", "ringfence-context"]});
        let reviewed =
            ReviewedUser { name: "u".into(), groups: vec!["a".into(), "b".into()], node: Some("worker-1".into()) };
        assert_eq!(decided(status), Ok(TokenReview::Authenticated(reviewed)));
    }

    #[test]
    fn token_review_rejects_unconfirmed_token() {
        let user = json!({"username": "u"});
        for status in [
            json!({}),
            json!({"authenticated": false, "error": "expired"}),
            json!({"authenticated": "true", "user": user, "audiences": ["ringfence-context"]}),
            json!({"authenticated": true, "user": user}),
            json!({"authenticated": true, "user": user, "audiences": ["other"]}),
        ] {
            assert_eq!(decided(status.clone()), Ok(TokenReview::Rejected), "{status}");
        }
        assert!(decided(json!({"authenticated": true, "audiences": ["ringfence-context"]})).is_err());
    }
}
