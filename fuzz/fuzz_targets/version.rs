//! Any three texts as versions: their order is one, whoever made them.

#![no_main]

use std::cmp::Ordering;

use ccm::resource::package::versions::{debian, generic, rpm};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut lines = text.splitn(3, '\n');
    let [a, b, c] = [(); 3].map(|()| lines.next().unwrap_or_default());
    check([a, b, c], &|a, b| rpm::compare(a, b));
    // Upstream's order is known not to be transitive.
    for zeroes in [false, true] {
        check([a, b, a], &|a, b| generic::compare(a, b, zeroes));
    }
    if [a, b, c]
        .into_iter()
        .all(|text| debian::compare(text, text).is_ok())
    {
        check([a, b, c], &|a, b| {
            debian::compare(a, b).expect("a version stays one")
        });
    }
    let _ = rpm::matches(a, b);
});

/// Checks that an order is reflexive, antisymmetric and transitive.
fn check(texts: [&str; 3], compare: &dyn Fn(&str, &str) -> Ordering) {
    for a in texts {
        assert_eq!(compare(a, a), Ordering::Equal, "{a:?}");
        for b in texts {
            assert_eq!(compare(a, b), compare(b, a).reverse(), "{a:?} {b:?}");
            for c in texts {
                if compare(a, b).is_le() && compare(b, c).is_le() {
                    assert!(compare(a, c).is_le(), "{a:?} {b:?} {c:?}");
                }
            }
        }
    }
}
