//! Kernel parameters, read below `/proc/sys`.

use std::path::{Path, PathBuf};

use super::super::document::Entry;
use super::{Attribute, Family, First, Look, LookError, World, unanswered};
use crate::system::files;

/// The longest value.
const MAX_VALUE: u64 = 1024 * 1024;

pub(super) const FAMILY: Family = Family {
    key: "kernel-param",
    name: "KernelParam",
    target: "name",
    settings: &[],
    attributes: &[Attribute::new("value")],
    first: First::Required,
    look,
};

fn look<'a>(entry: &'a Entry, _: &'a World<'a>) -> Result<Look<'a>, LookError> {
    let path = place(&entry.target())?;
    Ok(Box::new(move |attribute| match attribute {
        "value" => {
            let value = files::read_to_string(&path, MAX_VALUE)?;
            Ok(value.trim().into())
        }
        other => unanswered(other),
    }))
}

/// Returns where a parameter is. As for sysctl, a name whose first separator is a slash has dots
/// in its parts: `net/ipv4/conf/eth0.1/forwarding`.
fn place(name: &str) -> Result<PathBuf, LookError> {
    let separator = match name.find(['.', '/']) {
        Some(at) if name.get(at..).is_some_and(|rest| rest.starts_with('/')) => '/',
        _ => '.',
    };
    let parts: Vec<&str> = name.split(separator).collect();
    let is_odd =
        |part: &&str| part.is_empty() || *part == "." || *part == ".." || part.contains('\0');
    if parts.iter().any(is_odd) {
        let (what, name) = ("kernel parameter", name.to_owned());
        return Err(LookError::Name { what, name });
    }
    // With dots as separators a slash stands for a dot.
    let named = |part: &&str| match separator {
        '.' => part.replace('/', "."),
        _ => (*part).to_owned(),
    };
    Ok(parts
        .iter()
        .map(named)
        .fold(Path::new("/proc/sys").to_owned(), |path, part| {
            path.join(part)
        }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths_with_dots_or_slashes() {
        for (name, path) in [
            ("kernel.ostype", "/proc/sys/kernel/ostype"),
            ("kernel/ostype", "/proc/sys/kernel/ostype"),
            ("net/ipv4/conf/eth0.1/x", "/proc/sys/net/ipv4/conf/eth0.1/x"),
            ("net.ipv4.conf.eth0/1.x", "/proc/sys/net/ipv4/conf/eth0.1/x"),
        ] {
            assert_eq!(place(name).unwrap(), Path::new(path));
        }
    }

    #[test]
    fn a_name_cannot_lead_elsewhere() {
        for name in ["", "a/../../b", "/etc/passwd", "a..b", "./a", "a.\0"] {
            assert!(place(name).is_err(), "{name:?}");
        }
    }
}
