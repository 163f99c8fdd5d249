//! Version comparison of deb, rpm and generic versions. Property: the order is total.

#![no_main]

use std::cmp::Ordering;

use ccm_core::resource::package::versions::{debian, generic, rpm};
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
            debian::compare(a, b).expect("compare valid versions")
        });
    }
    let _ = rpm::matches(a, b);
});

/// Checks that an order is reflexive, antisymmetric and transitive.
fn check(texts: [&str; 3], compare: &dyn Fn(&str, &str) -> Ordering) {
    let orders = texts.map(|a| texts.map(|b| compare(a, b)));
    let order = |a: usize, b: usize| orders[a][b];
    for a in 0..3 {
        assert_eq!(order(a, a), Ordering::Equal, "{texts:?}");
        for b in 0..3 {
            assert_eq!(order(a, b), order(b, a).reverse(), "{texts:?}");
            for c in 0..3 {
                if order(a, b).is_le() && order(b, c).is_le() {
                    assert!(order(a, c).is_le(), "{texts:?}");
                }
            }
        }
    }
}
