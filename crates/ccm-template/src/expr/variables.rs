//! Variables declared with `let`, for the checker (their kinds) and the evaluator (their values).

use super::lexer::Text;

/// The variables in scope, innermost last.
pub(super) struct Variables<T>(Vec<(Text, T)>);

impl<T> Variables<T> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the innermost variable of this name.
    pub(super) fn get(&self, name: &str) -> Option<&T> {
        let mut innermost_first = self.0.iter().rev();
        innermost_first
            .find(|(known, _)| known.as_ref() == name)
            .map(|(_, value)| value)
    }

    pub(super) fn push(&mut self, name: Text, value: T) {
        self.0.push((name, value));
    }

    pub(super) fn pop(&mut self) {
        self.0.pop();
    }
}
