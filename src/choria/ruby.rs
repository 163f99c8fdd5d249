//! Conversion of the DDL to Ruby, for Ruby clients.

use std::fmt::{self, Write as _};

use serde_json::Value;

use ccm_agent::choria_rpc::ddl::{ActionDdl, Ddl, ValueType};

/// Returns the DDL as Ruby source.
pub(super) fn ruby(ddl: &Ddl) -> Result<String, fmt::Error> {
    let mut out = String::new();
    let metadata = &ddl.metadata;
    let texts = [
        (":name        ", &metadata.name),
        (":description ", &metadata.description),
        (":author      ", &metadata.author),
        (":license     ", &metadata.license),
        (":version     ", &metadata.version),
        (":url         ", &metadata.url),
        (":provider    ", &metadata.provider),
    ];
    for (index, (key, text)) in texts.into_iter().enumerate() {
        let start = if index == 0 { "metadata" } else { "        " };
        writeln!(out, "{start} {key}=> {},", quoted(text))?;
    }
    writeln!(out, "         :timeout     => {}", metadata.timeout)?;
    for action in &ddl.actions {
        out.push('\n');
        write_action(&mut out, action)?;
    }
    Ok(out)
}

fn write_action(out: &mut String, action: &ActionDdl) -> fmt::Result {
    let (name, description) = (quoted(&action.action), quoted(&action.description));
    writeln!(out, "action {name}, :description => {description} do")?;
    writeln!(out, "  display :{}", action.display)?;
    for (name, input) in &action.input {
        writeln!(out, "\n  input :{name},")?;
        writeln!(out, "        :prompt      => {},", quoted(&input.prompt))?;
        let description = quoted(&input.description);
        writeln!(out, "        :description => {description},")?;
        writeln!(
            out,
            "        :type        => :{},",
            input.value_type.as_str()
        )?;
        if input.value_type == ValueType::String {
            let pattern = quoted(&input.validation);
            writeln!(out, "        :validation  => {pattern},")?;
            writeln!(out, "        :maxlength   => {},", input.maxlength)?;
        }
        if input.value_type == ValueType::List {
            let words: Vec<String> = input.list.iter().map(|word| quoted(word)).collect();
            writeln!(out, "        :list        => [{}],", words.join(", "))?;
        }
        writeln!(out, "        :optional    => {}", input.optional)?;
    }
    for (name, output) in &action.output {
        writeln!(out, "\n  output :{name},")?;
        let description = quoted(&output.description);
        writeln!(out, "         :description => {description},")?;
        if let Some(default) = &output.default {
            writeln!(out, "         :default     => {},", literal(default))?;
        }
        if let Some(value_type) = output.value_type {
            let value_type = quoted(value_type.as_str());
            writeln!(out, "         :type        => {value_type},")?;
        }
        let shown = quoted(&output.display_as);
        writeln!(out, "         :display_as  => {shown}")?;
    }
    if !action.aggregate.is_empty() {
        out.push_str("\n  summarize do\n");
        for aggregate in &action.aggregate {
            let args: Vec<String> = match aggregate.args.split_first() {
                Some((Value::String(output), rest)) => std::iter::once(format!(":{output}"))
                    .chain(rest.iter().map(literal))
                    .collect(),
                _ => Vec::new(),
            };
            writeln!(
                out,
                "    aggregate {}({})",
                aggregate.function,
                args.join(", ")
            )?;
        }
        out.push_str("  end\n");
    }
    out.push_str("end\n");
    Ok(())
}

/// Returns a scalar value as a Ruby literal.
fn literal(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Null => "nil".into(),
        other => other.to_string(),
    }
}

/// Returns a single-quoted Ruby string, in which only quotes and backslashes are escaped.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', r"\\").replace('\'', r"\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares `ddl/ccm.ddl`; `CCM_UPDATE=1 cargo test --lib ruby` rewrites it.
    #[test]
    fn the_ruby_ddl_is_up_to_date() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/ddl/ccm.ddl");
        let text = ruby(&Ddl::embedded().unwrap()).unwrap();
        if std::env::var_os("CCM_UPDATE").is_some() {
            let content = ccm_core::system::files::Content::Bytes(text.as_bytes());
            let attributes = ccm_core::system::files::Attributes {
                mode: Some(0o644),
                ..Default::default()
            };
            let durability = ccm_core::system::files::Durability::Cached;
            ccm_core::system::files::store(file.as_ref(), content, &attributes, durability)
                .unwrap();
        }
        assert_eq!(std::fs::read_to_string(file).unwrap(), text);
    }

    #[test]
    fn quotes_and_backslashes_are_escaped() {
        assert_eq!(quoted(r"it's \A"), r"'it\'s \\A'");
    }
}
