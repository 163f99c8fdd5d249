//! Distinct elements: for each of several matchers one element that no other matcher takes.
//!
//! `["a*", "ab"]` is satisfied by `ab` and `ac` only if the first matcher leaves `ab` to the
//! second. So elements are taken over from matchers that can do with another one, until every
//! matcher has one or some matcher has none.

use super::{MatchError, Matcher};
use crate::model::Value;

/// How many pairs of matcher and element are looked at.
const MAX_PAIRS: usize = 1_000_000;

/// Tells whether every matcher finds an element of its own. A pair that can't be compared does
/// not match.
pub(super) fn finds_all(matchers: &[Matcher], elements: &[Value]) -> Result<bool, MatchError> {
    if matchers.len() > elements.len() {
        return Ok(false);
    }
    if matchers.len().saturating_mul(elements.len()) > MAX_PAIRS {
        return Err(MatchError::TooMany {
            matchers: matchers.len(),
            elements: elements.len(),
        });
    }
    let fitting: Vec<Vec<usize>> = matchers
        .iter()
        .map(|matcher| {
            let fits =
                |(index, element)| matches!(matcher.check(element), Ok(true)).then_some(index);
            elements.iter().enumerate().filter_map(fits).collect()
        })
        .collect();
    let mut pairing = Pairing {
        fitting: &fitting,
        taken_by: vec![None; elements.len()],
    };
    Ok((0..fitting.len()).all(|matcher| pairing.find(matcher, &mut vec![false; elements.len()])))
}

struct Pairing<'a> {
    /// The elements that fit each matcher.
    fitting: &'a [Vec<usize>],
    /// The matcher that has each element.
    taken_by: Vec<Option<usize>>,
}

impl Pairing<'_> {
    /// Finds an element for a matcher, making others move on if they can. Nested no deeper than
    /// there are matchers, of which `MAX_PAIRS` allows a thousand.
    fn find(&mut self, matcher: usize, seen: &mut [bool]) -> bool {
        let fitting = self.fitting;
        for element in fitting.get(matcher).into_iter().flatten() {
            match seen.get_mut(*element) {
                Some(seen) if !*seen => *seen = true,
                _ => continue,
            }
            let owner = self.taken_by.get(*element).copied().flatten();
            if owner.is_none_or(|owner| self.find(owner, seen)) {
                if let Some(place) = self.taken_by.get_mut(*element) {
                    *place = Some(matcher);
                }
                return true;
            }
        }
        false
    }
}
