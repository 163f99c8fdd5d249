//! `ccm registration query`: prints the registered services.

use std::fmt::Write as _;

use super::EntryFilter;
use crate::cli::environment::NatsArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::{Level, Line};
use ccm_core::model::registration::Entry;
use ccm_value::{json, yaml};

/// Query the registration store
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    filter: EntryFilter,

    /// Output JSON
    #[arg(long, conflicts_with = "yaml")]
    json: bool,

    /// Output YAML
    #[arg(long)]
    yaml: bool,
}

pub(super) fn run(
    args: &Args,
    nats: &NatsArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let found = runtime::block_on(async {
        let connection = nats.connect().await?;
        let stream = nats.registration_stream();
        let found = connection.registrations(stream, args.filter.tokens());
        found.await.map_err(CliError::of_registrations)
    })?;
    for problem in &found.unreadable {
        console.log(&Line::new(Level::Warn, problem.to_string()));
    }
    let mut entries = found.entries;
    // The sort is stable: entries of one service stay ordered by address and port.
    entries.sort_by(|a, b| group(a).cmp(&group(b)));
    let text = if args.json {
        format!("{}\n", json::pretty(&entries).map_err(CliError::failed)?)
    } else if args.yaml {
        let document = serde_json::to_value(&entries).map_err(CliError::failed)?;
        format!("{}\n", yaml::print(&document))
    } else {
        text(&entries)
    };
    console.print(&text);
    Ok(Verdict::default())
}

fn group(entry: &Entry) -> [&str; 3] {
    [&entry.cluster, &entry.protocol, &entry.service]
}

/// Formats entries as text, grouped by service.
fn text(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "No results found\n".into();
    }
    let mut text = String::new();
    let mut head = None;
    for entry in entries {
        let this = (&entry.service, &entry.cluster);
        if head != Some(this) {
            let _ = writeln!(text, "Service: {} @ {}\n", this.0, this.1);
            head = Some(this);
        }
        let port = entry.port().map_or("none".into(), |port| port.to_string());
        for (label, value) in [
            ("Cluster", &entry.cluster),
            ("Protocol", &entry.protocol),
            ("Service", &entry.service),
            ("Address", &entry.address),
            ("Port", &port),
            ("Priority", &entry.priority.to_string()),
        ] {
            let _ = writeln!(text, "{label:>14}: {value}");
        }
        if !entry.annotations.is_empty() {
            text.push_str("   Annotations:\n");
            for (key, value) in &entry.annotations {
                let _ = writeln!(text, "{:16}{key}: {value}", "");
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::registration::Port;

    fn entry(service: &str, address: &str) -> Entry {
        Entry {
            cluster: "prod".into(),
            service: service.into(),
            protocol: "http".into(),
            address: address.into(),
            port: Port::Number(80),
            priority: 10,
            ..Entry::default()
        }
    }

    #[test]
    fn entries_are_grouped_by_service() {
        let mut annotated = entry("web", "10.0.0.1");
        annotated.annotations.insert("zone".into(), "a".into());
        let shown = text(&[annotated, entry("web", "10.0.0.2")]);
        let expected = "\
Service: web @ prod

       Cluster: prod
      Protocol: http
       Service: web
       Address: 10.0.0.1
          Port: 80
      Priority: 10
   Annotations:
                zone: a

       Cluster: prod
      Protocol: http
       Service: web
       Address: 10.0.0.2
          Port: 80
      Priority: 10

";
        assert_eq!(shown, expected);
    }

    #[test]
    fn an_empty_result_has_a_message() {
        assert_eq!(text(&[]), "No results found\n");
    }
}
