//! Object names: `<cluster>-<namespace>-<name>`, which may collide.

use std::collections::BTreeSet;

use policy::remote::RemoteSet;
use sha2::{Digest, Sha256};

/// A name for each of these sorted sets. On a collision the first set keeps the name, and the others get a hash suffix;
/// so does a set whose plain name is not valid, such as one in capitals. The parts are labels of up to 63 characters,
/// so that no name is too long.
pub(super) fn names(sets: &[&RemoteSet]) -> Vec<String> {
    let mut taken: BTreeSet<String> = sets.iter().filter_map(|set| plain(set)).collect();
    let mut free = taken.clone();
    let name = |set: &&RemoteSet| match plain(set).filter(|name| free.remove(name)) {
        Some(name) => name,
        None => {
            let (mut name, mut attempt) = (hashed(set, 0), 0);
            while !taken.insert(name.clone()) {
                attempt += 1;
                name = hashed(set, attempt);
            }
            name
        }
    };
    sets.iter().map(name).collect()
}

/// `None` if it is not a valid object name (RFC 1123 subdomain).
fn plain(set: &RemoteSet) -> Option<String> {
    let name = joined(set);
    (tidy(&name) == name).then_some(name)
}

fn hashed(set: &RemoteSet, attempt: u32) -> String {
    let RemoteSet { cluster, namespace, name } = set;
    let hash = Sha256::digest(format!("{cluster}/{namespace}/{name}/{attempt}"));
    let hex: String = hash.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hex}", tidy(&joined(set)))
}

fn joined(RemoteSet { cluster, namespace, name }: &RemoteSet) -> String {
    format!("{cluster}-{namespace}-{name}")
}

/// Replaces characters that are invalid in a name. A dot is valid, but not next to another or a dash.
fn tidy(text: &str) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let tidy: String = text.to_ascii_lowercase().chars().map(|c| if fits(c) { c } else { '-' }).collect();
    let is_name = tidy.split('.').all(|label| !label.is_empty() && !label.starts_with('-') && !label.ends_with('-'));
    if is_name { tidy } else { tidy.replace('.', "-").trim_matches('-').to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(sets: &[(&str, &str, &str)]) -> Vec<String> {
        let mut sets: Vec<RemoteSet> = sets.iter().map(|(c, n, s)| RemoteSet::new(c, n, s)).collect();
        sets.sort();
        names(&sets.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_set_is_named_by_its_three_parts() {
        assert_eq!(named(&[("my-cluster", "my-ns", "my-app")]), ["my-cluster-my-ns-my-app"]);
        assert_eq!(named(&[("east", "shop", "web.v2")]), ["east-shop-web.v2"]);
    }

    #[test]
    fn sets_with_equal_joined_names_get_distinct_names() {
        let names = named(&[("a", "b-c", "d"), ("a-b", "c", "d"), ("a", "b", "c-d")]);
        assert_eq!(names[0], "a-b-c-d");
        assert!(names[1..].iter().all(|name| name.starts_with("a-b-c-d-")), "{names:?}");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 3);
        // A name does not depend on other sets, except on colliding ones.
        assert_eq!(named(&[("a", "b", "c-d"), ("a-b", "c", "d"), ("x", "y", "z")])[1], names[2]);
    }

    #[test]
    fn name_chosen_to_equal_hashed_one_stays_distinct() {
        let hash_of_second = named(&[("a", "b", "c-d"), ("a", "b-c", "d")])[1].clone();
        let chosen = hash_of_second.strip_prefix("a-b-").unwrap();
        let names = named(&[("a", "b", "c-d"), ("a", "b-c", "d"), ("a", "b", chosen)]);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 3, "{names:?}");
    }

    #[test]
    fn invalid_label_value_becomes_valid_object_name() {
        let long = "X".repeat(63);
        for value in ["Web", "web_1", "a..b", "a.-b", &long] {
            let name = named(&[("east", "shop", value)]).remove(0);
            assert!(name.len() <= 253 && plain(&RemoteSet::new("x", "y", &name)).is_some(), "{name}");
            assert!(name.starts_with("east-shop-"), "{name}");
        }
        let [one, other] = ["Web", "wEb"].map(|value| named(&[("east", "shop", value)]).remove(0));
        assert_ne!(one, other);
    }
}
