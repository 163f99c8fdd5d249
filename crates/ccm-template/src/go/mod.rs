//! The `go` engine: Go's `text/template` with all sprig functions.
//!
//! A custom implementation rather than a crate, because dicts must be mutable (`set`), errors must
//! name a line, numbers must keep Go's types, and hostile templates must end with an error. Stages:
//! `lex` makes tokens, `parse` builds and checks the `tree`, `eval` runs it on `Datum`s with the
//! functions of `builtin` and `sprig`.
//!
//! No I/O: files, stores and partials are [`Functions`] of the caller, and `env` reads `environ` of
//! the root data. Differences from Go are listed at [`render`].

mod builtin;
mod call;
mod datum;
mod eval;
mod lex;
mod limits;
mod literal;
mod method;
mod parse;
mod printf;
mod sprig;
mod tree;
pub mod version;

pub(super) use self::limits::BudgetExceeded;

#[cfg(test)]
mod tests;

use self::call::CallContext;
use self::datum::Datum;
use self::limits::Meter;
use self::tree::Fault;
use super::env::{Functions, Now};
use super::error::TemplateError;
use ccm_value::Value;

/// Options of a template.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Template name in error messages, usually its path.
    pub name: &'a str,
    /// Left delimiter; empty means the default.
    pub left: &'a str,
    pub right: &'a str,
    /// Clock of `now`, `date` and `ago`; the system clock if absent.
    pub now: Option<&'a Now>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            name: "template",
            left: "{{",
            right: "}}",
            now: None,
        }
    }
}

/// Renders a template.
///
/// Functions of the caller take precedence over built-in ones of the same name. Differences from
/// Go: maps are always iterated in order, `int64` is accepted where sprig wants `int`, text cut
/// inside a character is repaired, there are no complex numbers, and depth, size and time are
/// limited.
pub fn render(
    template: &str,
    options: &Options<'_>,
    root: &Value,
    functions: &Functions,
) -> Result<String, TemplateError> {
    render_within(Meter::default(), template, options, root, functions)
}

fn render_within(
    meter: Meter,
    template: &str,
    options: &Options<'_>,
    root: &Value,
    functions: &Functions,
) -> Result<String, TemplateError> {
    let left = or_default(options.left, "{{");
    let right = or_default(options.right, "}}");
    let located = |fault: Fault| TemplateError::at(template, options.name, fault.at, fault.message);
    let tree = parse::parse(template, left, right, functions).map_err(located)?;
    let context = CallContext {
        meter,
        environ: root.get("environ").or_else(|| root.get("Environ")),
        now: options.now,
    };
    eval::run(&tree, options.name, Datum::from_value(root), &context).map_err(located)
}

fn or_default<'a>(delimiter: &'a str, default: &'a str) -> &'a str {
    if delimiter.is_empty() {
        default
    } else {
        delimiter
    }
}
