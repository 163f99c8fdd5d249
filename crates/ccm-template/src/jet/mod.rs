//! The Jet template language, as the original engine renders it, over plain [`Value`]s.
//!
//! A lexer, a parser and an evaluator that walks the tree; no dependency. Output is never
//! escaped, and neither templates nor output need be UTF-8. Values are data and immutable: an
//! assignment to a field changes the template's own copy. Templates reach nothing outside but
//! the functions and the loader they are given, and every size, depth and step is limited, so
//! that no template can exhaust the process.
//!
//! Read `lexer`; `parser`, which `statement` and `expression` continue; `ast`; then `runtime`, which
//! `block`, `assign`, `evaluate`, `access` and `call` continue; `builtins` last.

mod access;
mod assign;
mod ast;
mod block;
mod builtins;
mod call;
mod error;
mod escape;
mod evaluate;
mod expression;
mod lexer;
mod loader;
mod operand;
mod operate;
mod parser;
mod runtime;
mod statement;
#[cfg(test)]
mod tests;
mod token;

use std::fmt;
use std::sync::Arc;

pub use error::{JetError, Stage};
pub(super) use loader::ShelfError;
pub(super) use operand::WeightError;

use crate::env::Functions;
use ccm_value::Value;
use ccm_value::value::Map;
use loader::Shelf;
use runtime::Runtime;

/// Returns the text of a template named by an absolute path such as `/parts/head.jet`, if it
/// exists. Endings that an author may leave out are tried by the engine.
pub type Loader = Arc<dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync>;

/// How a template is read.
#[derive(Clone)]
pub struct Options {
    /// What messages call the template; relative names in it start beside it.
    pub name: String,
    /// What opens an action; an empty one means Jet's own `{{`.
    pub left: String,
    /// What closes an action; an empty one means Jet's own `}}`.
    pub right: String,
    /// Where named templates come from; without it there are none.
    pub loader: Option<Loader>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "input".into(),
            left: "[[".into(),
            right: "]]".into(),
            loader: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Options")
            .field("name", &self.name)
            .field("left", &self.left)
            .field("right", &self.right)
            .finish_non_exhaustive()
    }
}

/// A parsed template, to be rendered any number of times.
#[derive(Clone)]
pub struct Template {
    unit: Arc<ast::Unit>,
    options: Options,
}

impl Template {
    /// Returns the parsed form of a text. Templates that it extends or imports are loaded now,
    /// those that it includes when it is rendered.
    pub fn parse(text: &[u8], options: &Options) -> Result<Self, JetError> {
        let mut shelf = Shelf::new(options.clone());
        Ok(Self {
            unit: shelf.parse(&options.name, text).map_err(|fault| *fault)?,
            options: options.clone(),
        })
    }

    /// Returns the rendered text. A null context is none: `.` has no value then. A template that
    /// exceeds a limit (5 million steps, 256 MiB of text, 150 levels of nesting) is an error.
    pub fn render(
        &self,
        variables: &Map,
        context: &Value,
        functions: &Functions,
    ) -> Result<Vec<u8>, JetError> {
        let shelf = Shelf::new(self.options.clone());
        let runtime = Runtime::new(&self.unit, shelf, variables, context, functions);
        runtime.render(&self.unit).map_err(|fault| *fault)
    }

    /// Returns whether the template may use a variable, function or field of that name, so that
    /// a caller can leave out what is costly to gather. Says yes when in doubt: when the whole
    /// context is used, or when a loader may bring templates that are not known yet.
    pub fn mentions(&self, name: &str) -> bool {
        let names = &self.unit.names;
        self.options.loader.is_some() || [name, ".", "dump"].iter().any(|&n| names.contains(n))
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Template")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Returns a template rendered once.
pub fn render(
    template: &[u8],
    options: &Options,
    variables: &Map,
    context: &Value,
    functions: &Functions,
) -> Result<Vec<u8>, JetError> {
    Template::parse(template, options)?.render(variables, context, functions)
}
