//! The page: hand-written files inside the program. Nothing is built and nothing comes from
//! elsewhere.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// The description of the API.
pub(super) const OPENAPI: &str = include_str!("assets/openapi.json");

/// One file of the page.
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

/// Every file of the page, by its path.
pub(super) static ASSETS: [Asset; 11] = [
    asset!("/", HTML, "index.html"),
    asset!("/style.css", CSS, "style.css"),
    asset!("/icon.svg", SVG, "icon.svg"),
    asset!("/app.js", SCRIPT, "app.js"),
    asset!("/dom.js", SCRIPT, "dom.js"),
    asset!("/store.js", SCRIPT, "store.js"),
    asset!("/overview.js", SCRIPT, "overview.js"),
    asset!("/nodes.js", SCRIPT, "nodes.js"),
    asset!("/node.js", SCRIPT, "node.js"),
    asset!("/rollouts.js", SCRIPT, "rollouts.js"),
    asset!("/events.js", SCRIPT, "events.js"),
];

pub(super) fn answer(asset: &'static Asset) -> Response {
    // A new program may have a new page under the same name.
    let headers = [
        (header::CONTENT_TYPE, asset.media),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, asset.text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_nobody_else() {
        for asset in &ASSETS {
            for scheme in ["http://", "https://", "//cdn"] {
                let mut found = asset.text.match_indices(scheme);
                // The name of a vocabulary is no address.
                let is_outside = found.any(|(at, _)| {
                    let rest = asset.text.get(at..).unwrap_or_default();
                    !rest.starts_with("http://www.w3.org/2000/svg")
                });
                assert!(!is_outside, "{} names {scheme}", asset.path);
            }
        }
    }

    #[test]
    fn nothing_is_inline() {
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
    fn every_module_that_is_imported_is_served() {
        for asset in &ASSETS {
            for (_, rest) in asset
                .text
                .match_indices("from \"./")
                .map(|(at, found)| asset.text.split_at(at + found.len() - 1))
            {
                let path = rest.split('"').next().unwrap();
                let is_served = ASSETS.iter().any(|other| other.path == path);
                assert!(is_served, "{} imports {path}", asset.path);
            }
        }
    }
}
