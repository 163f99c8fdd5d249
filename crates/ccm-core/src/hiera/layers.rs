//! Data layers: the precedence of a manifest's data sources.
//!
//! Lists are concatenated when merged, unless a merge strategy replaces them, so a layer must be merged only once. Data is therefore always
//! merged from all layers, never onto an earlier result, and the merged data of a parent manifest,
//! which contains the external data, is not merged with the external data again.

use super::merge_strategy::MergeStrategies;
use crate::model::Value;

/// Layers of a manifest's data, lowest precedence first. Layers that are not maps are ignored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layers {
    /// Resolved data of the manifest's own document.
    pub document: Value,
    /// Resolved data of the additional data source.
    pub source: Value,
    /// Data from the parent manifest.
    pub inherited: InheritedData,
    /// Data from the parent manifest without its secrets, if it has some.
    pub inherited_redacted: Option<InheritedData>,
    /// External data from the caller of the run.
    pub external: Value,
    /// Merge strategies of the manifest's own document.
    pub strategies: MergeStrategies,
}

/// Data that a nested manifest gets from its parent.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum InheritedData {
    /// The manifest is not nested.
    #[default]
    Nothing,
    /// `data` property of the apply resource, even if empty.
    Property(Value),
    /// Without that property: the parent's merged data, including the external data.
    Parent(Value),
}

impl Layers {
    /// Returns the merged data.
    pub fn merge(&self) -> Value {
        self.merge_with(&self.inherited)
    }

    /// Returns the merged data without the opened secrets of the parent manifest, if it has some.
    pub fn merge_redacted(&self) -> Option<Value> {
        let inherited = self.inherited_redacted.as_ref()?;
        Some(self.merge_with(inherited))
    }

    fn merge_with(&self, inherited: &InheritedData) -> Value {
        let none = &Value::Null;
        let (inherited, external) = match inherited {
            InheritedData::Nothing => (none, &self.external),
            InheritedData::Property(data) => (data, &self.external),
            InheritedData::Parent(data) => (data, none),
        };
        [&self.document, &self.source, inherited, external]
            .into_iter()
            .filter(|layer| layer.as_map().is_some())
            .fold(Value::empty_map(), |data, layer| {
                self.strategies.merge(&data, layer)
            })
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
    fn each_layer_overrides_the_previous_one() {
        let layers = Layers {
            document: data("{a: 1, b: 1, c: 1, d: 1, l: [1]}"),
            source: data("{b: 2, c: 2, d: 2, l: [2]}"),
            inherited: InheritedData::Property(data("{c: 3, d: 3, l: [3]}")),
            external: data("{d: 4, l: [4]}"),
            ..Layers::default()
        };
        assert_eq!(
            layers.merge(),
            data("{a: 1, b: 2, c: 3, d: 4, l: [1, 2, 3, 4]}")
        );
    }

    #[test]
    fn external_data_is_merged_once_into_a_child() {
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
    fn missing_layers_change_nothing() {
        assert_eq!(Layers::default().merge(), Value::empty_map());
    }
}
