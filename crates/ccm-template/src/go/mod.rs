//! The `go` engine: Go's `text/template` with all of sprig.
//!
//! Written by hand over our own values rather than on a crate: dicts must change in place (`set`),
//! errors must name a line, numbers must keep Go's types, and a hostile template must end in an
//! error. The way of a template: `lex` cuts, `parse` builds the `tree` and checks what can be
//! checked, `eval` runs it on `Datum`s with the functions of `builtin` and `sprig`.
//!
//! It reaches nothing outside: files, stores and partials are [`Functions`] of the caller, and
//! `env` reads the `environ` of the root data. Differences from Go are listed at [`render`].

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

pub(super) use self::limits::Exhausted;

#[cfg(test)]
mod tests;

use self::call::World;
use self::datum::Datum;
use self::limits::Meter;
use self::tree::Fault;
use super::env::{Functions, Now};
use super::error::TemplateError;
use ccm_value::Value;

/// How a template is read, and by which clock.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// What errors call the template: usually its path.
    pub name: &'a str,
    /// The delimiters; an empty one is the default.
    pub left: &'a str,
    pub right: &'a str,
    /// The clock of `now`, `date` and `ago`; without one they ask the machine.
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

/// Returns the text a template renders to.
///
/// Functions of the caller win over ours of the same name. Where we differ from Go: maps are
/// always walked in order, `int64` is accepted where sprig wants `int`, text cut inside a
/// character is repaired, there are no complex numbers, and depth, size and time are bounded.
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
    let world = World {
        meter,
        environ: root.get("environ").or_else(|| root.get("Environ")),
        now: options.now,
    };
    eval::run(&tree, options.name, Datum::from_value(root), &world).map_err(located)
}

fn or_default<'a>(delimiter: &'a str, default: &'a str) -> &'a str {
    if delimiter.is_empty() {
        default
    } else {
        delimiter
    }
}
