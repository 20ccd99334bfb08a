//! Every screen on the shop, wide and narrow, in light and dark, and pictures of them for people (`make screenshots`).

use super::*;

/// Colours of the ground and of text in each theme (`ui/style.css`).
const THEMES: [(&str, &str, &str); 2] =
    [("light", "rgb(246, 247, 249)", "rgb(27, 36, 48)"), ("dark", "rgb(18, 23, 29)", "rgb(228, 233, 239)")];

/// Screens by the names of their pictures: the URL, and an element that is there when the screen is complete.
const SCREENS: [(&str, &str, &str); 11] = [
    ("map", "", ".line.unseen"),
    ("table", "&view=table", "tbody tr"),
    ("edge", "&from=pod/shop/checkout&to=world%2F%2F%2F%2Fpublic", ".panel .explained"),
    ("flows", "&screen=flows", ".expand"),
    ("workloads", "&screen=workload", "tbody tr"),
    ("workload", "&screen=workload&name=pod/shop/api", "[data-scroll=unseen]"),
    ("audit", "&screen=audit&suggest=shop", ".difference"),
    ("policies", "&screen=policies", "tbody tr"),
    ("policy", "&screen=policies&name=shop/api-from-tiers", "tbody tr"),
    ("whatif", "&screen=whatif", "#policies"),
    ("coverage", "&screen=coverage", ".tile"),
];

const DENY_API: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: api-from-tiers}
spec:
  podSelector: {matchLabels: {app: api}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 9090}]
";

/// Lowest contrast of a word with its ground: that of WCAG 2.1, level AA.
const LEAST_CONTRAST: f64 = 4.5;

/// The contrasts of words that have a ground of their own.
const CONTRASTS: &str = "(() => {
    const light = (colour) => {
        const [r, g, b] = colour.match(/[0-9.]+/g).map((part) => part / 255)
            .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = ({ color, backgroundColor }) => {
        const [a, b] = [light(color), light(backgroundColor)].sort((a, b) => b - a);
        return (a + 0.05) / (b + 0.05);
    };
    const words = document.querySelectorAll('html, .verdict:not(.fine), .stage, [aria-current], .toggle[aria-pressed=true], .primary');
    return [...words].map((word) => [word.className, contrast(getComputedStyle(word))]);
})()";

#[test]
fn every_screen_works_in_both_themes() {
    let cluster = GeneratedCluster::shop();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cluster.json"), cluster.manifests().to_string()).unwrap();
    let manifests = folder.path().display().to_string();
    let mut served = Served::start_with(
        &cluster,
        &["--edges", "on", "--edge-learning", "1s", "--watch-policies", "on", "--manifests", &manifests],
        6,
    );
    served.aggregator.until_within(OBSERVED, "edges are observed", |aggregator| {
        let answer = aggregator.try_json("/v1/edges").unwrap();
        (answer["edges"].as_array().unwrap().len() == 13).then_some(())
    });
    for width in [1440, 800] {
        let mut tab = Tab::open(width, 900);
        for (theme, ground, text) in THEMES {
            tab.prefer(theme);
            for (name, address, complete) in SCREENS {
                served.open(&mut tab, &format!("?pause{address}"));
                tab.until(&format!("document.querySelector({complete:?}) !== null"));
                show_more(&mut tab, name);
                let colours = "(({ backgroundColor, color }) => [backgroundColor, color])(getComputedStyle(document.documentElement))";
                assert_eq!(tab.evaluate(colours), serde_json::json!([ground, text]), "{name}, {theme}");
                let contrasts = tab.evaluate(CONTRASTS);
                for word in contrasts.as_array().unwrap() {
                    assert!(word[1].as_f64().unwrap() >= LEAST_CONTRAST, "{name}, {theme}: {word}");
                }
                generated::assert_fits(&mut tab);
                picture(&mut tab, &format!("shop-{name}-{width}-{theme}"));
            }
        }
        assert_clean(&mut tab, &served);
    }
}

/// Opens what a screen has behind a button.
fn show_more(tab: &mut Tab, name: &str) {
    match name {
        "flows" => {
            tab.evaluate("document.querySelector('.expand').click()");
            tab.until("document.querySelector('.record') !== null");
        }
        "whatif" => {
            let given = serde_json::to_string(DENY_API).unwrap();
            tab.evaluate(&format!("document.getElementById('policies').value = {given}"));
            tab.evaluate("document.querySelector('[data-key=compare]').click()");
            tab.until("document.querySelector('.result tbody tr') !== null");
        }
        _ => {}
    }
}

/// Writes a picture of the whole page to the folder of the environment variable `SCREENSHOTS`, if it is set.
pub(super) fn picture(tab: &mut Tab, name: &str) {
    if let Some(folder) = std::env::var_os("SCREENSHOTS") {
        let folder = std::path::PathBuf::from(folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), tab.screenshot()).unwrap();
    }
}
