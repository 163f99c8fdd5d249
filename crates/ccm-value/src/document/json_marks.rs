//! Positions of the nodes of a JSON document.
//!
//! The JSON parser reports no positions, so a second pass over the text assigns them. The text is
//! known to be valid and the tree is in document order, so this pass only skips tokens.

use super::{Mark, Node, NodeKind};

/// Sets the positions of a tree that was parsed from this JSON text.
pub(super) fn set(root: &mut Node, text: &str) {
    let mut cursor = Cursor {
        chars: text.chars(),
        mark: Mark { line: 1, column: 1 },
    };
    cursor.node(root);
}

struct Cursor<'t> {
    chars: std::str::Chars<'t>,
    /// Position of the next character.
    mark: Mark,
}

impl Cursor<'_> {
    fn node(&mut self, node: &mut Node) {
        self.skip_to_token();
        node.mark = self.mark;
        match &mut node.kind {
            NodeKind::Scalar { .. } => self.scalar(),
            NodeKind::List(items) => {
                self.next();
                items.iter_mut().for_each(|item| self.node(item));
                self.close();
            }
            NodeKind::Map(entries) => {
                self.next();
                for (key, value) in entries {
                    self.node(key);
                    self.node(value);
                }
                self.close();
            }
        }
    }

    fn next(&mut self) -> Option<char> {
        let c = self.chars.next()?;
        if c == '\n' {
            self.mark.line = self.mark.line.saturating_add(1);
            self.mark.column = 1;
        } else {
            self.mark.column = self.mark.column.saturating_add(1);
        }
        Some(c)
    }

    fn peek(&self) -> Option<char> {
        self.chars.clone().next()
    }

    /// Skips white space and the separators before a value.
    fn skip_to_token(&mut self) {
        while self
            .peek()
            .is_some_and(|c| c.is_ascii_whitespace() || c == ',' || c == ':')
        {
            self.next();
        }
    }

    /// Skips the closing bracket of a list or map.
    fn close(&mut self) {
        self.skip_to_token();
        self.next();
    }

    fn scalar(&mut self) {
        if self.peek() != Some('"') {
            let is_end = |c: char| c.is_ascii_whitespace() || ",:]}".contains(c);
            while self.peek().is_some_and(|c| !is_end(c)) {
                self.next();
            }
            return;
        }
        self.next();
        while let Some(c) = self.next() {
            match c {
                '"' => return,
                '\\' => drop(self.next()),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    #[test]
    fn every_node_of_a_json_document_has_its_position() {
        let node =
            parse("{\"a\": [1,\n  {\"b\\\"c\": \"é,]\", \"d\": -2.5e3}],\n \"e\": {}}").unwrap();
        let mark = |line, column| Mark { line, column };
        let inner = &node.get("a").unwrap().items().unwrap()[1];
        assert_eq!(inner.mark, mark(2, 3));
        let (key, value) = inner.entry("d").unwrap();
        assert_eq!((key.mark, value.mark), (mark(2, 19), mark(2, 24)));
        assert_eq!(node.entry("e").unwrap().0.mark, mark(3, 2));
    }
}
