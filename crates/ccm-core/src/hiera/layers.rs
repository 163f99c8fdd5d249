//! What is laid over what: the precedence of data, written down once.
//!
//! Lists concatenate when they are merged, so a layer that is applied twice shows twice. Data is
//! therefore always merged from its parts and never onto an earlier result; and data inherited down
//! by a parent, which has the external data in it already, does not get it again.

use crate::model::Value;

/// The layers of a manifest's data, weakest first. Layers that are not maps do not count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layers {
    /// What the manifest's own document resolves to.
    pub document: Value,
    /// What the extra source of data resolves to, on its own.
    pub source: Value,
    /// What the manifest that applies this one hands down.
    pub inherited: InheritedData,
    /// What whoever runs the manifest insists on.
    pub external: Value,
}

/// Data inherited down by another manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum InheritedData {
    /// The manifest is the outermost one.
    #[default]
    Nothing,
    /// The `data` property of the apply resource, even if empty.
    Property(Value),
    /// No such property: the parent's merged data, external data included.
    Parent(Value),
}

impl Layers {
    /// Returns the merged data.
    pub fn merge(&self) -> Value {
        let none = &Value::Null;
        let (inherited, external) = match &self.inherited {
            InheritedData::Nothing => (none, &self.external),
            InheritedData::Property(data) => (data, &self.external),
            InheritedData::Parent(data) => (data, none),
        };
        [&self.document, &self.source, inherited, external]
            .into_iter()
            .filter(|layer| layer.as_map().is_some())
            .fold(Value::empty_map(), |data, layer| data.merge_deep(layer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document;

    fn data(text: &str) -> Value {
        document::parse(text).unwrap().to_value()
    }

    #[test]
    fn each_layer_is_laid_over_the_former_one() {
        let layers = Layers {
            document: data("{a: 1, b: 1, c: 1, d: 1, l: [1]}"),
            source: data("{b: 2, c: 2, d: 2, l: [2]}"),
            inherited: InheritedData::Property(data("{c: 3, d: 3, l: [3]}")),
            external: data("{d: 4, l: [4]}"),
        };
        assert_eq!(
            layers.merge(),
            data("{a: 1, b: 2, c: 3, d: 4, l: [1, 2, 3, 4]}")
        );
    }

    #[test]
    fn external_data_reaches_a_child_once() {
        let external = data("{l: [ext]}");
        let parent = Layers {
            document: data("{l: [own]}"),
            external: external.clone(),
            ..Layers::default()
        };
        let child = Layers {
            document: data("{l: [child]}"),
            inherited: InheritedData::Parent(parent.merge()),
            external,
            ..Layers::default()
        };
        assert_eq!(child.merge(), data("{l: [child, own, ext]}"));
        assert_eq!(parent.merge(), data("{l: [own, ext]}"));
    }

    #[test]
    fn layers_that_are_not_there_change_nothing() {
        assert_eq!(Layers::default().merge(), Value::empty_map());
    }
}
