//! Hierarchical data: a document of base data, overrides and a hierarchy, resolved by facts to data.
//!
//! Pure: no files, network or logs. The caller fetches the bytes of a [`Source`]; [`Source::read`]
//! parses them into a [`Document`], [`resolve`] returns its data, [`Layers`] merges data by
//! precedence, and [`validate()`] checks the result against the rules in the document's comments.
//!
//! Start reading at `hierarchy`. `comments` finds comments, `key_positions` maps them to keys, and
//! `annotations` parses them. `locate` finds the positions of errors.

mod annotations;
mod comments;
mod data_file;
mod error;
mod explain;
mod hierarchy;
mod key_positions;
mod layers;
mod locate;
mod merge_strategy;
mod output;
mod sources;
mod validate;
mod validators;

pub use annotations::{Annotations, KeyPath, Rule, Warning, parse_annotations};
pub use data_file::DataFile;
pub use error::HieraError;
pub use explain::{Explanation, LevelExplanation, explain};
pub use hierarchy::{
    DATA_KEY, Level, LevelOutcome, ReadDataFile, ResolvedData, check_sections, no_data_files,
    normalize, resolve, resolve_levels,
};
pub use layers::{InheritedData, Layers};
pub use locate::{locate, locate_failure, locate_key, suggestion};
pub use merge_strategy::{MergeStrategies, MergeStrategy};
pub use output::env_lines;
pub use sources::{Document, Source};
pub use validate::{Failure, InvalidData, validate, validate_secret};
pub use validators::{CheckError, check_value};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use ccm_template::env::Facts;

    /// Parses, resolves and validates a text, and returns its environment lines.
    fn run(text: &str) -> Result<String, HieraError> {
        let document = Source::File("text".into()).read(text.as_bytes(), DATA_KEY)?;
        let data = resolve(&document.root, &Facts::default(), DATA_KEY)?;
        validate(&data, &document.annotations.rules)?;
        env_lines(&data, "P")
    }

    #[test]
    fn a_document_is_resolved_and_validated() {
        let text = "data:\n  # @validate isInt(value)\n  a: '{{ 1 + 1 }}'\n";
        assert_eq!(run(text), Ok("P_A=2\n".into()));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,200}") {
            let _ = run(&text);
        }

        #[test]
        fn no_mix_of_parts_panics(
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
