//! Any text as a manifest: what is wrong with it is somewhere in it, and what is read can be
//! checked and printed.

#![no_main]

use ccm_core::hiera::Layers;
use ccm_core::manifest::{ManifestInput, deep_check, load};
use ccm_template::Env;
use ccm_template::expr::Cache;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let input = ManifestInput {
        text,
        source: "manifest.yaml",
        layers: Layers::default(),
    };
    let problems = match load(input, &mut Env::default(), &Cache::default()) {
        Ok(manifest) => {
            assert_eq!(manifest.resources.len(), manifest.marks.len());
            let _ = manifest.render().expect("what was read can be printed");
            deep_check(&manifest)
        }
        Err(error) => {
            assert!(!error.problems.is_empty());
            error.problems
        }
    };
    // A text ends on the line after its last newline; JSON and YAML count theirs alike.
    let lines = text.split(['\n', '\r']).count() + 1;
    for problem in problems {
        assert!(problem.mark.line as usize <= lines, "{problem}");
    }
});
