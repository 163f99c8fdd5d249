//! Hierarchical data: one document holds base data, overrides, and the order in which facts pick
//! among them; the result is plain data.
//!
//! Pure: knows no file, no network and no log. Whoever fetches hands the bytes to [`Source::read`]
//! and gets a [`Document`]; [`resolve`] makes data of it, [`Layers`] says what overrides what, and
//! [`validate()`] checks the outcome against the rules in the author's comments.
//!
//! Start reading at `hierarchy`; comments are found in `comments`,
//! given to keys in `outline` and understood in `annotations`.

mod annotations;
mod comments;
mod error;
mod hierarchy;
mod key_positions;
mod layers;
mod output;
mod sources;
mod validate;
mod validators;

pub use annotations::{Annotations, KeyPath, Rule, Warning, parse_annotations};
pub use error::HieraError;
pub use hierarchy::{DATA_KEY, normalize, resolve};
pub use layers::{InheritedData, Layers};
pub use output::env_lines;
pub use sources::{Document, Source};
pub use validate::{Failure, InvalidData, validate};
pub use validators::{CheckError, check_value};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use ccm_template::env::Facts;

    /// Takes a text all the way from bytes to validated lines.
    fn run(text: &str) -> Result<String, HieraError> {
        let document = Source::File("text".into()).read(text.as_bytes(), DATA_KEY)?;
        let data = resolve(&document.root, &Facts::default(), DATA_KEY)?;
        validate(&data, &document.annotations.rules)?;
        env_lines(&data, "P")
    }

    #[test]
    fn a_text_becomes_data_that_keeps_its_rules() {
        let text = "data:\n  # @validate isInt(value)\n  a: '{{ 1 + 1 }}'\n";
        assert_eq!(run(text), Ok("P_A=2\n".into()));
    }

    proptest! {
        #[test]
        fn any_text_gives_data_or_an_error(text in "\\PC{0,200}") {
            let _ = run(&text);
        }

        #[test]
        fn any_mix_of_parts_gives_data_or_an_error(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "data:", "hierarchy:", "overrides:", "order:", "merge: deep", "default:", "a: ",
                    "b.c: ", "\n", "\n  ", "\n    ", "- ", "1.0", "~", "'x'", "{{ ", " }}", "${", "}",
                    "lookup('facts.a')", "# @require", "# @validate isIP(value)", "|", "&x ", "*x",
                    "{", "[", "]", ", ", "\"",
                ]),
                0..40,
            )
        ) {
            let _ = run(&parts.concat());
        }
    }
}
