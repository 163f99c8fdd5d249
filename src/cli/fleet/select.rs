//! Which nodes: the flags that every fleet command shares, and the selection they amount to.
//!
//! Who that is is decided by the inventory; see [`ccm_fleet::selection`].

use std::io::Read as _;
use std::path::Path;

use super::flag_values::BadValue;
use crate::cli::CliError;
use ccm_core::filter::parse_fact;
use ccm_core::model::amount::Amount;
use ccm_core::model::envelope::FactFilter;
use ccm_core::model::node::NodeName;
use ccm_core::system::files;
use ccm_fleet::selection::{Selection, parse_nodes};

/// The longest list of nodes that is read.
const MAX_LIST_BYTES: u64 = 64 * 1024 * 1024;

/// Which nodes are meant.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Which nodes")]
pub(super) struct SelectArgs {
    /// A node, or a /regular expression/ of names; may be given often
    #[arg(id = "select_node", long = "node", value_name = "NAME", value_parser = name, global = true)]
    node: Vec<String>,

    /// A file of nodes, one per line or as our own JSON; - reads standard input
    #[arg(
        id = "select_nodes",
        long = "nodes",
        value_name = "FILE",
        global = true
    )]
    nodes: Option<String>,

    /// A group that nodes must be in; of several, all
    #[arg(
        id = "select_group",
        long = "group",
        value_name = "GROUP",
        global = true
    )]
    group: Vec<String>,

    /// A fact that nodes must have, such as host.info.platform=debian; also != =~ < > <= >=, and label.NAME
    #[arg(id = "select_fact", long = "fact", value_name = "FACT=VALUE", value_parser = parse_fact, global = true)]
    fact: Vec<FactFilter>,

    /// An expression over facts, labels, groups and identity
    #[arg(
        id = "select_expr",
        long = "select",
        value_name = "EXPR",
        global = true
    )]
    select: Option<String>,

    /// Only so many of them, by chance: a number or a percentage
    #[arg(
        id = "select_sample",
        long = "sample",
        value_name = "N|N%",
        global = true
    )]
    sample: Option<Amount>,

    /// What the chance of --sample begins with: the same seed gives the same nodes
    #[arg(
        id = "select_seed",
        long = "seed",
        value_name = "N",
        default_value_t = 0,
        global = true
    )]
    seed: u64,

    /// At most so many, in the order of their names
    #[arg(id = "select_limit", long = "limit", value_name = "N", global = true)]
    limit: Option<usize>,

    /// Every node
    #[arg(id = "select_all", long = "all", global = true)]
    all: bool,
}

/// Reads a name or a pattern; what can't be a node's name is a mistake.
fn name(text: &str) -> Result<String, BadValue> {
    let is_pattern = text.len() > 1 && text.starts_with('/') && text.ends_with('/');
    if !is_pattern {
        text.parse::<NodeName>()?;
    }
    Ok(text.into())
}

impl SelectArgs {
    /// Returns the selection, with nodes that were named elsewhere on the command line. Without
    /// any condition it means everyone.
    pub(super) fn selection(&self, named: &[NodeName]) -> Result<Selection, CliError> {
        let mut nodes = self.node.clone();
        nodes.extend(named.iter().map(ToString::to_string));
        if let Some(list) = &self.nodes {
            let read = parse_nodes(&read_list(list)?).map_err(CliError::usage)?;
            if read.is_empty() {
                // No condition would mean everyone, which is not what an empty list says.
                return Err(CliError::usage(format!("{list} names no nodes")));
            }
            nodes.extend(read.into_iter().map(String::from));
        }
        let selection = Selection {
            nodes,
            groups: self.group.clone(),
            facts: self.fact.clone(),
            select: self.select.clone(),
            sample: self.sample,
            seed: self.seed,
            limit: self.limit,
        };
        match self.condition(named).filter(|_| self.all) {
            Some(flag) => {
                let text = format!("--all is every node, {flag} is not");
                Err(CliError::usage(text).hint("leave one out"))
            }
            None => Ok(selection),
        }
    }

    /// Returns what leaves nodes out, if anything does.
    fn condition(&self, named: &[NodeName]) -> Option<&'static str> {
        let given = [
            (!named.is_empty(), "a node's name"),
            (!self.node.is_empty(), "--node"),
            (self.nodes.is_some(), "--nodes"),
            (!self.group.is_empty(), "--group"),
            (!self.fact.is_empty(), "--fact"),
            (self.select.is_some(), "--select"),
        ];
        let found = given.into_iter().find(|(is_given, _)| *is_given);
        found.map(|(_, flag)| flag)
    }

    /// Returns the selection of a command that changes nodes: everyone must be asked for by name.
    pub(super) fn careful_selection(&self, named: &[NodeName]) -> Result<Selection, CliError> {
        let selection = self.selection(named)?;
        let unseeded = Selection {
            seed: 0,
            ..selection.clone()
        };
        if unseeded == Selection::default() && !self.all {
            Err(CliError::usage("no node is named").hint(
                "say which nodes, such as --node NAME, --group GROUP or --fact FACT=VALUE, or --all",
            ))
        } else {
            Ok(selection)
        }
    }
}

fn read_list(list: &str) -> Result<String, CliError> {
    if list != "-" {
        return files::read_to_string(Path::new(list), MAX_LIST_BYTES).map_err(CliError::usage);
    }
    let mut text = String::new();
    let mut input = std::io::stdin().lock().take(MAX_LIST_BYTES);
    input
        .read_to_string(&mut text)
        .map_err(|err| CliError::usage(err).at("standard input"))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        select: SelectArgs,
    }

    fn args(line: &str) -> Result<SelectArgs, String> {
        let words = ["ccm"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words)
            .map(|line| line.select)
            .map_err(|err| err.to_string())
    }

    #[test]
    fn what_changes_nodes_wants_a_selection_or_all() {
        for (line, is_fine) in [
            ("", false),
            ("--seed 7", false),
            ("--all", true),
            ("--node web1", true),
            ("--fact os=debian", true),
            ("--limit 1", true),
            ("--sample 10%", true),
            ("--all --limit 3", true),
            ("--all --node web1", false),
        ] {
            let found = args(line).unwrap().careful_selection(&[]);
            assert_eq!(found.is_ok(), is_fine, "{line}");
        }
    }

    #[test]
    fn what_all_is_at_odds_with_is_named() {
        for (line, flag) in [
            ("--all --node web1", "--node"),
            ("--all --group web", "--group"),
        ] {
            let error = args(line).unwrap().selection(&[]).unwrap_err().to_string();
            assert!(error.contains(flag), "{error}");
        }
    }

    #[test]
    fn a_name_that_no_node_can_have_is_a_mistake() {
        assert!(
            args("--node Web_1")
                .unwrap_err()
                .contains("invalid identity")
        );
        assert!(args("--node /^Web/").is_ok());
        assert!(args("--fact os").is_err());
    }
}
