//! Jet templates. Property: no panic and no endless rendering.

#![no_main]

use ccm_template::Engine;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| ccm_fuzz::render_template(Engine::Jet, text));
