//! Rules that authors write into comments: `# @require` and `# @validate EXPR` before a key of
//! the data, or behind its value.
//!
//! Which comment belongs to which key is decided in `outline`; whether data keeps the rules, in
//! `validate`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::comments::comments;
use super::hierarchy;
use super::key_positions::Outline;
use crate::model::Value;

/// What the comments of a document say about its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// In the order of the document, one for each key.
    pub rules: Vec<Rule>,
    pub warnings: Vec<Warning>,
}

/// What one key of the data must satisfy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub path: KeyPath,
    /// The key must have a value.
    pub required: bool,
    /// An expression that must hold for the value.
    pub validation: Option<String>,
}

/// An annotation that means nothing; most often a mistyped one.
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

/// The keys that lead to a value, as names and not as text: a key may hold dots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPath(Vec<Arc<str>>);

impl KeyPath {
    /// Returns the value at the end of the path, if every step on the way is a map.
    pub fn find<'v>(&self, data: &'v Value) -> Option<&'v Value> {
        self.0
            .iter()
            .try_fold(data, |value, key| value.get(key.as_ref()))
    }
}

/// Prints names joined by dots; a name that is more than a plain one stands in quotes.
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

/// Reads what is printed; every text is some path.
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

/// Returns the annotations of the keys below `data_key` in a YAML text; keys inside lists have
/// none. A text that is no document has none either: its reader has said why. An empty `data_key`
/// means [`DATA_KEY`](super::DATA_KEY).
pub fn parse_annotations(text: &str, data_key: &str) -> Annotations {
    // Most documents have none, and need no second look.
    if !(text.contains('#') && text.contains('@')) {
        return Annotations::default();
    }
    let Some(outline) = Outline::new(text) else {
        return Annotations::default();
    };
    let mut rules: BTreeMap<usize, Rule> = BTreeMap::new();
    let mut warnings = Vec::new();
    for comment in comments(text, &outline.opaque) {
        if !comment.text.starts_with('@') {
            continue;
        }
        let Some(entry) = outline.owner(&comment) else {
            continue;
        };
        let Some(path) = below(outline.path(entry), hierarchy::or_default(data_key)) else {
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

/// Returns the part of a path that is below the data.
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
    /// Adds what an annotation asks; of several expressions the last one counts.
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

    /// Returns the rules of a text as `key`, with `!` for required and the expression behind.
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
    fn a_comment_behind_a_value_belongs_to_its_key() {
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
    fn a_comment_behind_a_closed_list_or_map_belongs_to_its_key() {
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
    fn a_comment_in_a_map_that_goes_on_belongs_to_the_next_key() {
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
    fn comments_below_one_about_an_outer_key_are_about_that_key_too() {
        let text = "data:\n  w:\n    a: 1\n  # @require\n\n    # @validate x\n  b: 2\n";
        assert_eq!(rules(text), ["b!x"]);
    }

    #[test]
    fn a_hash_inside_a_scalar_is_no_comment() {
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
    fn the_line_that_opens_a_block_may_have_a_comment() {
        let text = "data:\n  é: | # @require\n    # no\n    ü\n  # @require\n  c: 1\n";
        assert_eq!(rules(text), ["é!", "c!"]);
        let text = "data:\n  a: !!str > # @require\n    # no\n  b: | # @require\n";
        assert_eq!(rules(text), ["a!", "b!"]);
    }

    #[test]
    fn items_of_lists_and_what_is_in_them_have_no_rules() {
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
    fn merged_and_aliased_keys_keep_their_comments_where_they_stand() {
        let text = "x: &x\n  # @require\n  a: 1\ndata:\n  <<: *x\n  b: *x\n";
        assert_eq!(rules(text), [""; 0]);
    }

    #[test]
    fn line_breaks_of_other_systems_count_too() {
        assert_eq!(
            rules("data:\r\n  # @require\r\n  a: 1 # @validate x\r\n"),
            ["a!x"]
        );
    }

    #[test]
    fn only_the_first_hash_is_taken_off() {
        assert_eq!(
            rules("data:\n  ## @require\n  #@validate x # y\n  a: 1\n"),
            ["ax # y"]
        );
    }

    #[test]
    fn the_last_of_several_expressions_counts() {
        assert_eq!(
            rules("data:\n  # @validate x\n  # @validate y\n  a: 1\n"),
            ["ay"]
        );
    }

    #[test]
    fn an_unknown_annotation_is_a_warning_and_no_rule() {
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
    fn a_key_with_dots_is_one_step_of_its_path() {
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
