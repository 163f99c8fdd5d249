//! Annotations in comments: `# @require` and `# @validate EXPR` before a key of the data or after its
//! value.
//!
//! `key_positions` decides which key a comment belongs to; `validate` checks data against the rules.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::comments::comments;
use super::hierarchy;
use super::key_positions::KeyPositions;
use crate::model::Value;

/// Annotations of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// Rules in the order of the document, one per annotated key.
    pub rules: Vec<Rule>,
    pub warnings: Vec<Warning>,
}

/// Validation rule of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub path: KeyPath,
    /// The key must have a value.
    pub required: bool,
    /// Expression that must be true for the value.
    pub validation: Option<String>,
}

/// Unknown annotation, probably mistyped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub path: KeyPath,
    pub annotation: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "Unrecognized annotation in hiera data: key {} annotation {}",
            self.path, self.annotation
        )
    }
}

/// Path of keys to a value, kept as a list because a key may contain dots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPath(pub(super) Vec<Arc<str>>);

impl KeyPath {
    /// Returns the value at the path, if it exists.
    pub fn find<'v>(&self, data: &'v Value) -> Option<&'v Value> {
        self.0
            .iter()
            .try_fold(data, |value, key| value.get(key.as_ref()))
    }

    /// Returns the keys of the path.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|key| &**key)
    }
}

/// Formats the keys joined by dots; keys with special characters are quoted.
impl fmt::Display for KeyPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().enumerate() {
            if index > 0 {
                out.write_str(".")?;
            }
            if name.contains(['.', '[', ']', '$', '*']) {
                write!(out, "'{name}'")?
            } else {
                out.write_str(name)?
            }
        }
        Ok(())
    }
}

/// Parses the displayed form; every text is a valid path.
impl FromStr for KeyPath {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let mut names = Vec::new();
        let mut rest = text;
        loop {
            let quoted = rest.strip_prefix('\'').and_then(|inside| {
                let (name, tail) = inside.split_once('\'')?;
                (tail.is_empty() || tail.starts_with('.')).then_some((name, tail))
            });
            let (name, tail) = quoted.unwrap_or_else(|| {
                let end = rest.find('.').unwrap_or(rest.len());
                rest.split_at(end)
            });
            names.push(name.into());
            match tail.strip_prefix('.') {
                Some(tail) => rest = tail,
                None => return Ok(Self(names)),
            }
        }
    }
}

/// Returns the annotations of the keys below `data_key` in a YAML text. Keys inside lists have none,
/// nor has a text that is not valid YAML: the parser of the document reports that. An empty
/// `data_key` means [`DATA_KEY`](super::DATA_KEY).
pub fn parse_annotations(text: &str, data_key: &str) -> Annotations {
    // Fast path: most documents have no annotations.
    if !(text.contains('#') && text.contains('@')) {
        return Annotations::default();
    }
    let Some(positions) = KeyPositions::new(text) else {
        return Annotations::default();
    };
    let mut rules: BTreeMap<usize, Rule> = BTreeMap::new();
    let mut warnings = Vec::new();
    for comment in comments(text, &positions.opaque) {
        if !comment.text.starts_with('@') {
            continue;
        }
        let Some(entry) = positions.owner(&comment) else {
            continue;
        };
        let Some(path) = below(positions.path(entry), hierarchy::or_default(data_key)) else {
            continue;
        };
        match Annotation::read(comment.text) {
            Some(annotation) => rules
                .entry(entry)
                .or_insert_with(|| Rule {
                    path,
                    required: false,
                    validation: None,
                })
                .add(annotation),
            None => warnings.push(Warning {
                path,
                annotation: comment.text.into(),
            }),
        }
    }
    Annotations {
        rules: rules.into_values().collect(),
        warnings,
    }
}

/// Returns the part of a path below the data key.
fn below(path: Option<Vec<&str>>, data_key: &str) -> Option<KeyPath> {
    let path = path?;
    let (root, names) = path.split_first()?;
    (*root == data_key && !names.is_empty())
        .then(|| KeyPath(names.iter().map(|name| Arc::from(*name)).collect()))
}

enum Annotation<'t> {
    Require,
    Validate(&'t str),
}

impl<'t> Annotation<'t> {
    fn read(text: &'t str) -> Option<Self> {
        match text {
            "@require" | "@required" => Some(Self::Require),
            _ => text
                .strip_prefix("@validate ")
                .map(|code| Self::Validate(code.trim())),
        }
    }
}

impl Rule {
    /// Adds an annotation; the last of several expressions is kept.
    fn add(&mut self, annotation: Annotation<'_>) {
        match annotation {
            Annotation::Require => self.required = true,
            Annotation::Validate(code) => self.validation = Some(code.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the rules of a text as `key`, then `!` if required, then the expression.
    fn rules(text: &str) -> Vec<String> {
        let found = parse_annotations(text, "data");
        assert_eq!(found.warnings, [], "{text}");
        found
            .rules
            .iter()
            .map(|rule| {
                let required = if rule.required { "!" } else { "" };
                let code = rule.validation.as_deref().unwrap_or_default();
                format!("{}{required}{code}", rule.path)
            })
            .collect()
    }

    #[test]
    fn a_comment_before_a_key_belongs_to_it_across_blank_lines() {
        let text = "data:\n  # about b\n  # @require\n\n\n  # @validate x\n\n  b: 2\n  c: 1\n";
        assert_eq!(rules(text), ["b!x"]);
    }

    #[test]
    fn a_comment_after_a_value_belongs_to_its_key() {
        assert_eq!(rules("data:\n  a: 1 # @require\n  b: 2\n"), ["a!"]);
        assert_eq!(rules("data:\n  a: # @require\n    b: 2\n"), ["a!"]);
        assert_eq!(rules("data:\n  a: # @require\n  b: 2\n"), ["a!"]);
        assert_eq!(rules("data:\n  a:\n    text # @require\n  b: 2\n"), ["a!"]);
        assert_eq!(
            rules("data:\n  a: one\n    two # @require\n  b: 2\n"),
            ["a!"]
        );
        assert_eq!(rules("data:\n  a: \"one\n    two\" # @require\n"), ["a!"]);
    }

    #[test]
    fn a_comment_between_key_and_value_belongs_to_the_key() {
        let text = "data:\n  a:\n    # @require\n    text\n  b: 1\n";
        assert_eq!(rules(text), ["a!"]);
    }

    #[test]
    fn a_comment_after_a_closed_list_or_map_belongs_to_its_key() {
        let text = "data:\n  m: {a: 1} # @require\n  l: [1, 2] # @require\n  e: {} # @validate x\n";
        assert_eq!(rules(text), ["m!", "l!", "ex"]);
    }

    #[test]
    fn a_comment_at_the_end_of_a_map_belongs_to_its_last_key() {
        assert_eq!(rules("data:\n  a: 1\n  # @require\n"), ["a!"]);
        assert_eq!(
            rules("data:\n  a: 1\n  b: 1\n  # @require\nother: 1\n"),
            ["b!"]
        );
        assert_eq!(
            rules("data:\n  web:\n    a: 1\n    # @require\n  b: 2\n"),
            ["web.a!"]
        );
        assert_eq!(
            rules("data:\n  w:\n    a: 1\n    b: 2\n      # @require\n   # @validate y\n"),
            ["wy", "w.b!"]
        );
    }

    #[test]
    fn a_comment_inside_a_map_belongs_to_the_next_key() {
        for text in [
            "data:\n  web:\n    a: 1\n  # @require\n  b: 2\n",
            "data:\n  a: 1\n    # @require\n  b: 2\n",
            "data:\n  a: 1\n# @require\n  b: 2\n",
            "data:\n  a:\n    # @require\n  b: 2\n",
            "data:\n  a: &x {c: 1}\n  # @require\n  b: *x\n",
            "data:\n  a:\n  - 1\n  # @require\n  b: 2\n",
            "data:\n  a: &x\n    c: 1\n   # @require\n  b: 2\n",
            "data: {a: 1,\n  # @require\n  b: 2}\n",
        ] {
            assert_eq!(rules(text), ["b!"], "{text}");
        }
    }

    #[test]
    fn comments_below_one_of_an_outer_key_belong_to_that_key_too() {
        let text = "data:\n  w:\n    a: 1\n  # @require\n\n    # @validate x\n  b: 2\n";
        assert_eq!(rules(text), ["b!x"]);
    }

    #[test]
    fn a_hash_inside_a_scalar_is_not_a_comment() {
        for text in [
            "data:\n  a: |\n    # @require\n    x\n  b: 1\n",
            "data:\n  a: >-\n    x\n\n    # @require\n\n  b: 1\n",
            "data:\n  a: \"x\n    # @require\n    \"\n",
            "data:\n  a: 'it''s # @require'\n",
            "data:\n  a: x#@require\n",
            "data:\n  a: !!str \"# @require\"\n",
            "data:\n  a: &x |\n    # @require\n  b: 1\n",
        ] {
            assert_eq!(rules(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn the_header_line_of_a_block_may_have_a_comment() {
        let text = "data:\n  é: | # @require\n    # no\n    ü\n  # @require\n  c: 1\n";
        assert_eq!(rules(text), ["é!", "c!"]);
        let text = "data:\n  a: !!str > # @require\n    # no\n  b: | # @require\n";
        assert_eq!(rules(text), ["a!", "b!"]);
    }

    #[test]
    fn list_items_and_their_keys_have_no_rules() {
        let text = "data:\n  l:\n    # @require\n    - a # @require\n    - # @require\n      b: 1\n    \
                    - c: 1 # @require\n      # @require\n      d: 1\n    # @require\n";
        assert_eq!(rules(text), [""; 0]);
    }

    #[test]
    fn only_keys_below_the_data_have_rules() {
        let text =
            "# @require\ndata: # @require\n  a: 1\n# @require\noverrides:\n  b: 1 # @require\n";
        assert_eq!(rules(text), [""; 0]);
        let found = parse_annotations(
            "conf:\n  a: 1 # @require\ndata:\n  b: 1 # @require\n",
            "conf",
        );
        assert_eq!(found.rules.len(), 1);
    }

    #[test]
    fn merged_and_aliased_keys_have_the_comments_at_their_definition() {
        let text = "x: &x\n  # @require\n  a: 1\ndata:\n  <<: *x\n  b: *x\n";
        assert_eq!(rules(text), [""; 0]);
    }

    #[test]
    fn cr_and_crlf_line_breaks_are_supported() {
        assert_eq!(
            rules("data:\r\n  # @require\r\n  a: 1 # @validate x\r\n"),
            ["a!x"]
        );
    }

    #[test]
    fn only_the_first_hash_is_stripped() {
        assert_eq!(
            rules("data:\n  ## @require\n  #@validate x # y\n  a: 1\n"),
            ["ax # y"]
        );
    }

    #[test]
    fn the_last_of_several_expressions_is_kept() {
        assert_eq!(
            rules("data:\n  # @validate x\n  # @validate y\n  a: 1\n"),
            ["ay"]
        );
    }

    #[test]
    fn an_unknown_annotation_is_a_warning() {
        let text = "data:\n  web:\n    # @requiired\n    a: 1 # @validate\n";
        let found = parse_annotations(text, "data");
        assert_eq!(found.rules, []);
        assert_eq!(
            found
                .warnings
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            [
                "Unrecognized annotation in hiera data: key web.a annotation @requiired",
                "Unrecognized annotation in hiera data: key web.a annotation @validate",
            ]
        );
    }

    #[test]
    fn a_key_with_dots_is_one_element_of_its_path() {
        let text = "data:\n  web:\n    # @require\n    a.b: 1\n    ~: 1 # @require\n";
        assert_eq!(rules(text), ["web.'a.b'!", "web.null!"]);
        let path = &parse_annotations(text, "data").rules[0].path;
        let data: Value = serde_json::from_str(r#"{"web": {"a.b": 1}}"#).unwrap();
        assert_eq!(path.find(&data), Some(&Value::Int(1)));
        assert_eq!(path.to_string().parse(), Ok(path.clone()));
    }

    proptest! {
        #[test]
        fn any_text_has_annotations_or_none(text in r"((data|[a-c&*{}\[\]|>'!?%-]|: ?|# @\w*|[ \t]|\r?\n){1,3}){0,24}") {
            parse_annotations(&text, "data");
        }

        #[test]
        fn any_key_path_reads_as_it_prints(names in prop::collection::vec("[a-c.$*]{1,4}", 1..4)) {
            let path = KeyPath(names.iter().map(|name| Arc::from(name.as_str())).collect());
            prop_assert_eq!(path.to_string().parse(), Ok(path));
        }
    }
}
