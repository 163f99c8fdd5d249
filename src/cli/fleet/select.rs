//! Node selection flags of the fleet commands.
//!
//! The inventory resolves the selection to nodes; see [`ccm_fleet::selection`].

use std::io::Read as _;
use std::path::Path;

use super::candidates;
use crate::cli::CliError;
use ccm_core::filter::parse_fact;
use ccm_core::model::amount::Amount;
use ccm_core::model::envelope::FactFilter;
use ccm_core::model::node::NodeName;
use ccm_core::system::files;
use ccm_fleet::selection::{Selection, parse_name_or_pattern, parse_nodes};

/// Size limit of a node list.
const MAX_LIST_BYTES: u64 = 64 * 1024 * 1024;

/// Node selection flags.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Node selection")]
pub(super) struct SelectArgs {
    /// Node name or /regular expression/; repeatable
    #[arg(id = "select_node", long = "node", value_name = "NAME", value_parser = parse_name_or_pattern, global = true, add = candidates::nodes())]
    node: Vec<String>,

    /// File with node names, one per line, or JSON output of ccm fleet; - reads standard input
    #[arg(
        id = "select_nodes",
        long = "nodes",
        value_name = "FILE",
        value_hint = clap::ValueHint::FilePath,
        global = true
    )]
    nodes: Option<String>,

    /// Group of the nodes; repeatable, all must match
    #[arg(
        id = "select_group",
        long = "group",
        value_name = "GROUP",
        global = true
    )]
    group: Vec<String>,

    /// Fact of the nodes, such as host.info.platform=debian; operators = != =~ < > <= >=; label.NAME for labels; repeatable
    #[arg(id = "select_fact", long = "fact", value_name = "FACT=VALUE", value_parser = parse_fact, global = true)]
    fact: Vec<FactFilter>,

    /// Expression over facts, labels, groups and identity
    #[arg(
        id = "select_expr",
        long = "select",
        value_name = "EXPR",
        global = true
    )]
    select: Option<String>,

    /// Number or percentage of nodes to choose at random
    #[arg(
        id = "select_sample",
        long = "sample",
        value_name = "N|N%",
        global = true
    )]
    sample: Option<Amount>,

    /// Random seed for --sample
    #[arg(
        id = "select_seed",
        long = "seed",
        value_name = "N",
        default_value_t = 0,
        global = true
    )]
    seed: u64,

    /// Maximum number of nodes, in order of their names
    #[arg(id = "select_limit", long = "limit", value_name = "N", global = true)]
    limit: Option<usize>,

    /// Select all nodes
    #[arg(id = "select_all", long = "all", global = true)]
    all: bool,
}

impl SelectArgs {
    /// Returns the selection, with nodes given as arguments added. Without any condition it selects
    /// all nodes.
    pub(super) fn selection(&self, named: &[NodeName]) -> Result<Selection, CliError> {
        let mut nodes = self.node.clone();
        nodes.extend(named.iter().map(ToString::to_string));
        if let Some(list) = &self.nodes {
            let read = parse_nodes(&read_list(list)?).map_err(CliError::usage)?;
            if read.is_empty() {
                // An empty list must not select all nodes.
                return Err(CliError::usage(format!("{list} contains no nodes")));
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
                let text = format!("--all can't be combined with {flag}");
                Err(CliError::usage(text).hint("remove one of them"))
            }
            None => Ok(selection),
        }
    }

    /// Returns the first given condition, if any.
    fn condition(&self, named: &[NodeName]) -> Option<&'static str> {
        let given = [
            (!named.is_empty(), "a node name"),
            (!self.node.is_empty(), "--node"),
            (self.nodes.is_some(), "--nodes"),
            (!self.group.is_empty(), "--group"),
            (!self.fact.is_empty(), "--fact"),
            (self.select.is_some(), "--select"),
        ];
        let found = given.into_iter().find(|(is_given, _)| *is_given);
        found.map(|(_, flag)| flag)
    }

    /// Returns the selection for a command that changes nodes: all nodes require `--all`.
    pub(super) fn explicit_selection(&self, named: &[NodeName]) -> Result<Selection, CliError> {
        let selection = self.selection(named)?;
        if selection.is_everything() && !self.all {
            Err(CliError::usage("no nodes selected").hint(
                "select nodes, for example with --node NAME, --group GROUP, --fact FACT=VALUE or --all",
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
    fn an_explicit_selection_needs_a_condition_or_all() {
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
            let found = args(line).unwrap().explicit_selection(&[]);
            assert_eq!(found.is_ok(), is_fine, "{line}");
        }
    }

    #[test]
    fn the_flag_that_conflicts_with_all_is_named() {
        for (line, flag) in [
            ("--all --node web1", "--node"),
            ("--all --group web", "--group"),
        ] {
            let error = args(line).unwrap().selection(&[]).unwrap_err().to_string();
            assert!(error.contains(flag), "{error}");
        }
    }

    #[test]
    fn an_invalid_node_name_is_refused() {
        assert!(
            args("--node Web_1")
                .unwrap_err()
                .contains("invalid identity")
        );
        assert!(args("--node /^Web/").is_ok());
        assert!(args("--fact os").is_err());
    }
}
