//! Positions of the parts of a resource in its document, for errors. The text is parsed again, because
//! only few resources have errors and a loaded manifest keeps no nodes.

use crate::model::document::{Mark, Node};

/// Part of a resource that an error is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// Value of a property; names match in any case and without underscores, as upstream names
    /// fields in its errors.
    Property(&'a str),
    /// Value of a key in a property that is a mapping.
    Key(&'a str, &'a str),
    /// Item of a property that is a list, by its text.
    Item(&'a str, &'a str),
    /// First text that contains this one.
    Containing(&'a str),
}

/// Returns the position of a part of the resource at a position: in its own properties or in the
/// defaults of its list. The document is a manifest or a list of resources.
pub(crate) fn find_part(document: &Node, resource: Mark, part: Part<'_>) -> Option<Mark> {
    let list = match document.get("ccm") {
        Some(section) => section.get("resources")?,
        None => document,
    };
    let mut entries = list.items()?.iter().filter_map(Node::entries);
    let (own, defaults) = entries.find_map(|entry| declaration(&entry.first()?.1, resource))?;
    let mut places = [own, defaults].into_iter().flatten();
    places.find_map(|properties| part.find(properties))
}

/// Returns the properties of a resource and the defaults of its list, if it is declared in this node.
fn declaration(value: &Node, resource: Mark) -> Option<(Option<&Node>, Option<&Node>)> {
    let Some(items) = value.items() else {
        return (value.mark == resource).then_some((Some(value), None));
    };
    let mut named = items.iter().filter_map(|item| item.entries()?.first());
    let (_, own) = named.find(|(key, _)| key.mark == resource)?;
    let defaults = items.iter().find_map(|item| item.get("defaults"));
    Some((Some(own), defaults))
}

impl Part<'_> {
    fn find(self, properties: &Node) -> Option<Mark> {
        match self {
            Self::Property(name) => Some(property(properties, name)?.mark),
            Self::Key(name, key) => {
                let value = property(properties, name)?;
                Some(value.get(key).unwrap_or(value).mark)
            }
            Self::Item(name, text) => {
                let value = property(properties, name)?;
                let mut items = value.items().unwrap_or_default().iter();
                let item = items.find(|item| item.text().is_some_and(|found| &**found == text));
                Some(item.unwrap_or(value).mark)
            }
            Self::Containing(text) => containing(properties, text),
        }
    }
}

/// Returns the value of a property. Names match in any case and without underscores.
pub(super) fn property<'n>(properties: &'n Node, name: &str) -> Option<&'n Node> {
    let letters = |name: &str| -> String {
        let letters = name.chars().filter(|c| *c != '_');
        letters.map(|c| c.to_ascii_lowercase()).collect()
    };
    let wanted = letters(name);
    let mut entries = properties.entries()?.iter();
    let found = entries.find(|(key, _)| key.text().is_some_and(|text| letters(text) == wanted));
    found.map(|(_, value)| value)
}

/// Returns the position of the first text that contains another one.
fn containing(node: &Node, wanted: &str) -> Option<Mark> {
    if let Some(text) = node.text() {
        return text.contains(wanted).then_some(node.mark);
    }
    let values = node.entries().unwrap_or_default().iter();
    let mut nodes = values
        .map(|(_, value)| value)
        .chain(node.items().unwrap_or_default());
    nodes.find_map(|node| containing(node, wanted))
}
