//! Assignment of a distinct element to each of several matchers.
//!
//! `["a*", "ab"]` matches `ab` and `ac` only if the first matcher gets `ac`. This is maximum
//! bipartite matching by augmenting paths (Kuhn's algorithm).

use super::{MatchError, Matcher};
use crate::model::Value;

/// Maximum number of pairs of matcher and element.
const MAX_PAIRS: usize = 1_000_000;

/// Whether every matcher gets its own element. A pair that cannot be compared does not match.
pub(super) fn assigns_all(matchers: &[Matcher], elements: &[Value]) -> Result<bool, MatchError> {
    if matchers.len() > elements.len() {
        return Ok(false);
    }
    if matchers.len().saturating_mul(elements.len()) > MAX_PAIRS {
        return Err(MatchError::TooMany {
            matchers: matchers.len(),
            elements: elements.len(),
        });
    }
    let candidates: Vec<Vec<usize>> = matchers
        .iter()
        .map(|matcher| {
            let is_match =
                |(index, element)| matches!(matcher.check(element), Ok(true)).then_some(index);
            elements.iter().enumerate().filter_map(is_match).collect()
        })
        .collect();
    let mut pairing = Pairing {
        candidates: &candidates,
        taken_by: vec![None; elements.len()],
    };
    Ok(
        (0..candidates.len())
            .all(|matcher| pairing.find(matcher, &mut vec![false; elements.len()])),
    )
}

struct Pairing<'a> {
    /// The matching elements of each matcher.
    candidates: &'a [Vec<usize>],
    /// The matcher that each element is assigned to.
    taken_by: Vec<Option<usize>>,
}

impl Pairing<'_> {
    /// Assigns an element to a matcher, reassigning others if possible. The recursion is at most as
    /// deep as there are matchers, which `MAX_PAIRS` limits to a thousand.
    fn find(&mut self, matcher: usize, seen: &mut [bool]) -> bool {
        let candidates = self.candidates;
        for element in candidates.get(matcher).into_iter().flatten() {
            match seen.get_mut(*element) {
                Some(seen) if !*seen => *seen = true,
                _ => continue,
            }
            let owner = self.taken_by.get(*element).copied().flatten();
            if owner.is_none_or(|owner| self.find(owner, seen)) {
                if let Some(slot) = self.taken_by.get_mut(*element) {
                    *slot = Some(matcher);
                }
                return true;
            }
        }
        false
    }
}
