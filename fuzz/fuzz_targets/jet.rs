//! Any bytes as a Jet template: no panic, no endless run.

#![no_main]

use ccm_template::Engine;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| ccm_fuzz::renders(Engine::Jet, text));
