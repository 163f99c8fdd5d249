//! The `jet` engine: the Jet template language over plain [`Value`]s.
//!
//! Lexer, parser and a tree-walking evaluator, without dependencies. Output is not escaped, and
//! neither templates nor output need be UTF-8. Values are immutable: an assignment to a field
//! changes the template's own copy. Templates access only the functions and the loader they are
//! given, and sizes, depth and steps are limited.
//!
//! Read `lexer`; `parser` with `statement` and `expression`; `ast`; then `runtime` with `block`,
//! `assign`, `evaluate`, `access` and `call`; `builtins` last.

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

pub use error::JetError;
pub(super) use loader::LoadError;
pub(super) use operand::SizeError;

use crate::env::Functions;
use ccm_value::Value;
use ccm_value::value::Map;
use loader::TemplateCache;
use runtime::Runtime;

/// Returns the text of the template at an absolute path such as `/parts/head.jet`, if it exists.
/// The engine tries the extensions that a name may omit.
pub type Loader = Arc<dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync>;

/// Options of a template.
#[derive(Clone)]
pub struct Options {
    /// Template name in messages; relative names in the template start at its directory.
    pub name: String,
    /// Left delimiter; empty means Jet's default `{{`.
    pub left: String,
    /// Right delimiter; empty means Jet's default `}}`.
    pub right: String,
    /// Loader of other templates; without it there are none.
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

/// A parsed template, which can be rendered any number of times.
#[derive(Clone)]
struct Template {
    parsed: Arc<ast::ParsedTemplate>,
    options: Options,
}

impl Template {
    /// Parses a template. Templates that it extends or imports are loaded now, those that it
    /// includes are loaded while rendering.
    fn parse(text: &[u8], options: &Options) -> Result<Self, JetError> {
        let mut templates = TemplateCache::new(options.clone());
        Ok(Self {
            parsed: templates
                .parse(&options.name, text)
                .map_err(|fault| *fault)?,
            options: options.clone(),
        })
    }

    /// Renders the template. With a null context `.` has no value. Fails if the template exceeds a
    /// limit (5 million steps, 256 MiB of text, 150 levels of nesting).
    fn render(
        &self,
        variables: &Map,
        context: &Value,
        functions: &Functions,
    ) -> Result<Vec<u8>, JetError> {
        let templates = TemplateCache::new(self.options.clone());
        let runtime = Runtime::new(&self.parsed, templates, variables, context, functions);
        runtime.render(&self.parsed).map_err(|fault| *fault)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Template")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Parses and renders a template.
pub fn render(
    template: &[u8],
    options: &Options,
    variables: &Map,
    context: &Value,
    functions: &Functions,
) -> Result<Vec<u8>, JetError> {
    Template::parse(template, options)?.render(variables, context, functions)
}
