//! Output of commands on nodes: equal outputs are one block with the names of their nodes.

use std::collections::BTreeMap;
use std::fmt;

use ccm_core::model::node::NodeName;
use ccm_core::model::output::CommandOutput;
use ccm_fleet::node_reply::NodeReply;
use ccm_value::text::count_of;

/// Maximum number of node names in the heading of a block, and of those if there are more nodes.
const MAX_NAMES: usize = 20;
const FIRST_NAMES: usize = 3;

/// Outputs with the nodes that printed them.
#[derive(Default)]
pub(super) struct OutputBlocks(BTreeMap<(String, String, bool), Vec<NodeName>>);

impl OutputBlocks {
    /// Adds the output in a reply, if there is one.
    pub(super) fn add(&mut self, reply: &NodeReply) {
        let Ok(Some(found)) = reply.body.field::<CommandOutput>("output") else {
            return;
        };
        // Another program may have sent it: control characters would change the terminal.
        let output = CommandOutput::new(&found.stdout, &found.stderr, found.truncated);
        if !output.is_empty() {
            let key = (output.stdout, output.stderr, output.truncated);
            self.0.entry(key).or_default().push(reply.node.clone());
        }
    }
}

impl fmt::Display for OutputBlocks {
    /// Writes the blocks of most nodes first.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut blocks: Vec<_> = self.0.iter().collect();
        blocks.sort_by_key(|(_, nodes)| (std::cmp::Reverse(nodes.len()), nodes.iter().min()));
        for ((stdout, stderr, truncated), nodes) in blocks {
            let heading = heading(nodes);
            let note = if *truncated {
                ", beginning left out"
            } else {
                ""
            };
            for (text, stream) in [(stdout, "output"), (stderr, "error output")] {
                if !text.is_empty() {
                    let text = text.trim_end_matches('\n');
                    writeln!(out, "{heading}: {stream}{note}:\n{text}")?;
                }
            }
        }
        Ok(())
    }
}

fn heading(nodes: &[NodeName]) -> String {
    let mut names: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
    names.sort_unstable();
    if names.len() <= MAX_NAMES {
        return names.join(", ");
    }
    let count = count_of(names.len(), "node");
    names.truncate(FIRST_NAMES);
    format!("{count} ({}, …)", names.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn blocks(replies: &[(&str, serde_json::Value)]) -> String {
        let mut blocks = OutputBlocks::default();
        for (node, output) in replies {
            let mut reply = NodeReply::no_reply(node.parse().unwrap(), "");
            reply.body = json!({ "output": output }).into();
            blocks.add(&reply);
        }
        blocks.to_string()
    }

    #[test]
    fn equal_outputs_are_one_block_with_their_nodes() {
        let same = json!({"stdout": "6.1\n"});
        let text = blocks(&[
            ("c", json!({"stdout": "5.4\n", "stderr": "old\n"})),
            ("b", same.clone()),
            ("a", same),
            ("d", json!(null)),
        ]);
        assert_eq!(
            text,
            "a, b: output:\n6.1\nc: output:\n5.4\nc: error output:\nold\n"
        );
    }

    #[test]
    fn many_nodes_are_counted_and_controls_are_removed() {
        let names: Vec<String> = (10..40).map(|n| format!("n{n}")).collect();
        let output = json!({"stdout": "\u{1b}[31mx", "truncated": true});
        let replies: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), output.clone()))
            .collect();
        assert_eq!(
            blocks(&replies),
            "30 nodes (n10, n11, n12, …): output, beginning left out:\nx\n"
        );
    }
}
