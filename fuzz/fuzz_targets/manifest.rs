//! Manifests. Properties: problems have a position inside the text, and a loaded manifest can be checked
//! and rendered.

#![no_main]

use ccm_core::hiera::Layers;
use ccm_core::manifest::{Checks, ManifestInput, load};
use ccm_template::Env;
use ccm_template::expr::Cache;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let input = ManifestInput {
        text,
        source: "manifest.yaml",
        layers: Layers::default(),
        checks: Checks::All,
        ..ManifestInput::default()
    };
    let problems = match load(input, &mut Env::default(), &Cache::default()) {
        Ok(manifest) => {
            assert_eq!(manifest.resources.len(), manifest.marks.len());
            let _ = manifest.render().expect("render a manifest");
            Vec::new()
        }
        Err(error) => {
            assert!(!error.problems.is_empty());
            error.problems
        }
    };
    // The end of a text is on the line after its last line break, in JSON and YAML alike.
    let lines = text.split(['\n', '\r']).count() + 1;
    for problem in problems {
        assert!(problem.location.mark.line as usize <= lines, "{problem}");
    }
});
