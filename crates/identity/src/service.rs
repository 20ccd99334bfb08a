//! The service identity, which is coarser than the security identity and names flows.

use std::borrow::Cow;

use policy::Labels;

/// Label that splits a namespace into several service identities.
pub const SERVICE_LABEL: &str = "service-identity";

/// Maximum length of a [`SERVICE_LABEL`] that is used. The API allows 63 bytes, but manifests may have any length.
const LONGEST_PART_BYTES: usize = 256;

/// `namespace`, or `namespace/part` for pods with the label [`SERVICE_LABEL`].
///
/// ```
/// use identity::service_identity;
/// use policy::Labels;
///
/// let front: Labels = [("service-identity".into(), "front".into())].into_iter().collect();
/// assert_eq!(service_identity("shop", &front), "shop/front");
/// assert_eq!(service_identity("shop", &Labels::new()), "shop");
/// ```
pub fn service_identity<'a>(namespace: &'a str, labels: &Labels) -> Cow<'a, str> {
    match labels.get(SERVICE_LABEL).filter(|part| !part.is_empty() && part.len() <= LONGEST_PART_BYTES) {
        Some(part) => Cow::Owned(format!("{namespace}/{part}")),
        None => Cow::Borrowed(namespace),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::labels;

    #[test]
    fn empty_and_overlong_parts_are_ignored() {
        let service = |part: &str| service_identity("shop", &labels(&[(SERVICE_LABEL, part)])).into_owned();
        assert_eq!(service(""), "shop");
        assert_eq!(service(&"x".repeat(LONGEST_PART_BYTES + 1)), "shop");
        assert_eq!(service(&"x".repeat(LONGEST_PART_BYTES)).len(), "shop/".len() + LONGEST_PART_BYTES);
    }
}
