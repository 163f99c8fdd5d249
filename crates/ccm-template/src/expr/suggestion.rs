//! Suggestions for errors of expressions.

use super::ast::LoopBuiltin;
use super::builtins;
use super::error::ExprError;
use crate::functions;
use ccm_value::document::nearest;

/// Variables of every expression.
const VARIABLES: [&str; 3] = ["Data", "Facts", "Environ"];

impl ExprError {
    /// Returns a suggestion for the author of the expression, as a clause in lower case.
    pub fn suggestion(&self) -> String {
        let message = self.message();
        if let Some(name) = message.strip_prefix("unknown name ") {
            return unknown_name(name);
        }
        let text = match message.as_str() {
            "the expression is not complete" => {
                "complete the expression, or remove the operator at its end"
            }
            "literal not terminated" => "close the quote inside the expression",
            message if message.starts_with("expected true or false") => {
                "write a condition, such as Facts.host.info.os == \"linux\""
            }
            message if message.contains("mismatched type") => {
                "convert one side with string(), int() or float()"
            }
            message if message.starts_with("type nil has no field") => {
                "check the name of the value, or use lookup(\"data.NAME\", \"DEFAULT\")"
            }
            message if message.contains("nil") => {
                "define the value, or use lookup(\"data.NAME\", \"DEFAULT\")"
            }
            _ => match self {
                Self::Hidden => "remove sensitive for a moment to see the error",
                Self::ShowsSecret => "remove the secret from this property",
                Self::Unclosed => "close each {{ with }} and each ${ with }",
                Self::Compile { .. } | Self::Run { .. } => {
                    "test the expression alone, with `ccm template FILE`"
                }
            },
        };
        text.into()
    }
}

fn unknown_name(name: &str) -> String {
    let known: Vec<&str> = VARIABLES
        .into_iter()
        .chain(functions::names())
        .chain(builtins::names())
        .chain(LoopBuiltin::names())
        .collect();
    match nearest(name, &known) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("write Data.{name} or Facts.{name} for a value, and quotes around text"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Expect, compile};

    fn suggestion(code: &str) -> String {
        compile(code, Expect::Bool).unwrap_err().suggestion()
    }

    #[test]
    fn a_mistyped_name_is_corrected() {
        assert_eq!(suggestion("data.x"), "did you mean Data?");
        assert_eq!(suggestion("lokup('x')"), "did you mean lookup?");
        assert_eq!(suggestion("filtr([], true)"), "did you mean filter?");
        assert!(suggestion("web").starts_with("write Data.web"));
    }

    #[test]
    fn a_value_that_is_not_a_condition_is_explained() {
        assert!(suggestion("1 + 1").starts_with("write a condition"));
        assert!(suggestion("1 +").starts_with("complete the expression"));
    }
}
