//! TokenReviews: issued tokens, each with its user and its audiences.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State as Extract;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::SharedState;
use super::serve::{status, suffer};

/// An issued token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedToken {
    pub user: String,
    pub groups: Vec<String>,
    pub audiences: Vec<String>,
    /// The node that the token is bound to.
    pub node: Option<String>,
}

impl IssuedToken {
    /// The token of a service account, with its usual groups.
    pub fn of_service_account(namespace: &str, name: &str, audience: &str) -> IssuedToken {
        IssuedToken {
            user: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".into(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".into(),
            ],
            audiences: vec![audience.to_owned()],
            node: None,
        }
    }

    /// The same token for a pod on that node.
    pub fn bound_to(self, node: &str) -> IssuedToken {
        IssuedToken { node: Some(node.to_owned()), ..self }
    }
}

#[derive(Default)]
pub(crate) struct Tokens {
    pub(super) issued: BTreeMap<String, IssuedToken>,
    pub(super) reviews: usize,
}

impl Tokens {
    fn review(&mut self, spec: &Value) -> Value {
        self.reviews += 1;
        let asked: Vec<&str> = spec["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let known = spec["token"].as_str().and_then(|token| self.issued.get(token));
        let known = known.map(|token| {
            let common = token.audiences.iter().filter(|audience| asked.contains(&audience.as_str()));
            (token, common.cloned().collect::<Vec<_>>())
        });
        match known {
            Some((token, audiences)) if !audiences.is_empty() => json!({
                "authenticated": true,
                "user": {
                    "username": token.user,
                    "uid": "a-uid",
                    "groups": token.groups,
                    "extra": {"authentication.kubernetes.io/node-name": token.node.as_slice()},
                },
                "audiences": audiences,
            }),
            Some(_) | None => json!({"error": "invalid bearer token"}),
        }
    }
}

pub(super) async fn create(Extract(shared): Extract<Arc<SharedState>>, Json(mut review): Json<Value>) -> Response {
    let (faults, _) = suffer(&shared).await;
    if let Some(code) = faults.token_review_refusal {
        return status(code, "Refused", &format!("the fake says {code}"));
    }
    review["status"] = shared.change(|state| state.tokens.review(&review["spec"]));
    (axum::http::StatusCode::CREATED, Json(review)).into_response()
}
