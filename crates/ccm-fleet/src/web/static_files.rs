//! Static files of the page, compiled into the program. There is no build step and no external
//! resource.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// OpenAPI document of the API.
pub(super) const OPENAPI: &str = include_str!("assets/openapi.json");

/// A file of the page.
#[derive(Debug)]
pub(super) struct Asset {
    pub(super) path: &'static str,
    media: &'static str,
    text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! asset {
    ($path:literal, $media:ident, $file:literal) => {
        Asset {
            path: $path,
            media: $media,
            text: include_str!(concat!("assets/", $file)),
        }
    };
}

/// All files of the page.
pub(super) static ASSETS: [Asset; 20] = [
    asset!("/", HTML, "index.html"),
    asset!("/style.css", CSS, "style.css"),
    asset!("/icon.svg", SVG, "icon.svg"),
    asset!("/app.js", SCRIPT, "app.js"),
    asset!("/address.js", SCRIPT, "address.js"),
    asset!("/dom.js", SCRIPT, "dom.js"),
    asset!("/store.js", SCRIPT, "store.js"),
    asset!("/actions.js", SCRIPT, "actions.js"),
    asset!("/chart.js", SCRIPT, "chart.js"),
    asset!("/grid.js", SCRIPT, "grid.js"),
    asset!("/overview.js", SCRIPT, "overview.js"),
    asset!("/nodes.js", SCRIPT, "nodes.js"),
    asset!("/node.js", SCRIPT, "node.js"),
    asset!("/runs.js", SCRIPT, "runs.js"),
    asset!("/labels.js", SCRIPT, "labels.js"),
    asset!("/bundles.js", SCRIPT, "bundles.js"),
    asset!("/rollouts.js", SCRIPT, "rollouts.js"),
    asset!("/rollout_form.js", SCRIPT, "rollout_form.js"),
    asset!("/events.js", SCRIPT, "events.js"),
    asset!("/statistics.js", SCRIPT, "statistics.js"),
];

/// Reports whether a path is that of a static file. Static files have no fleet data.
pub(super) fn is_asset(path: &str) -> bool {
    ASSETS.iter().any(|asset| asset.path == path)
}

/// Attribute that makes the page ask for the token before it loads anything.
const PLAIN_TAG: &str = "<html lang=\"en\">";
const TOKEN_TAG: &str = "<html lang=\"en\" data-token=\"required\">";

pub(super) fn serve(asset: &'static Asset, has_token: bool) -> Response {
    // Another version of the program may have other files.
    let headers = [
        (header::CONTENT_TYPE, asset.media),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    match asset.media == HTML && has_token {
        true => (headers, asset.text.replacen(PLAIN_TAG, TOKEN_TAG, 1)).into_response(),
        false => (headers, asset.text).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_no_external_resources() {
        for asset in &ASSETS {
            for scheme in ["http://", "https://", "//cdn"] {
                let mut found = asset.text.match_indices(scheme);
                // An XML namespace is no address.
                let is_outside = found.any(|(at, _)| {
                    let rest = asset.text.get(at..).unwrap_or_default();
                    !rest.starts_with("http://www.w3.org/2000/svg")
                });
                assert!(!is_outside, "{} names {scheme}", asset.path);
            }
        }
    }

    #[test]
    fn the_page_has_the_tag_that_requires_a_token() {
        assert_eq!(ASSETS[0].text.matches(PLAIN_TAG).count(), 1);
    }

    #[test]
    fn the_page_has_no_inline_scripts_or_styles() {
        let page = ASSETS[0].text;
        for inline in ["<style", " style=", " onclick=", "javascript:"] {
            assert!(!page.contains(inline), "{inline}");
        }
        let scripts = page.matches("<script").count();
        assert_eq!(
            scripts,
            page.matches("<script type=\"module\" src=").count()
        );
    }

    #[test]
    fn every_rollout_state_has_a_colour() {
        let script = module("/rollouts.js").text;
        let start = script.find("const COLOUR_OF = {").unwrap();
        let (colours, _) = script[start..].split_once("};").unwrap();
        for name in ccm_core::model::rollout::RolloutState::NAMES {
            let is_there = [format!(" {name}: "), format!("{name:?}: ")];
            let is_there = is_there.iter().any(|key| colours.contains(key));
            assert!(is_there, "{name} has no colour");
        }
    }

    /// Returns the paths that a module imports.
    fn imports(asset: &'static Asset) -> impl Iterator<Item = &'static str> {
        let parts = asset.text.split("from \".").skip(1);
        parts.map(|rest| rest.split('"').next().unwrap())
    }

    fn module(path: &str) -> &'static Asset {
        let found = ASSETS.iter().find(|asset| asset.path == path);
        found.unwrap_or_else(|| panic!("{path} is imported and not served"))
    }

    #[test]
    fn module_imports_have_no_cycle_and_every_module_is_used() {
        fn follow(path: &'static str, above: &mut Vec<&'static str>, seen: &mut Vec<&'static str>) {
            assert!(!above.contains(&path), "import cycle: {above:?} and {path}");
            above.push(path);
            for inner in imports(module(path)) {
                follow(inner, above, seen);
            }
            above.pop();
            seen.push(path);
        }
        let mut seen = Vec::new();
        follow("/app.js", &mut Vec::new(), &mut seen);
        let scripts = ASSETS.iter().filter(|asset| asset.media == SCRIPT);
        for script in scripts {
            assert!(seen.contains(&script.path), "{} is not used", script.path);
        }
    }
}
