//! Type `kernel-param`: values in `/proc/sys`.

use std::path::{Path, PathBuf};

use super::super::document::Entry;
use super::{
    Attribute, AttributeReader, FirstAttribute, InspectError, ProbeContext, ResourceType,
    not_implemented,
};
use crate::system::files;

/// The longest value.
const MAX_VALUE: u64 = 1024 * 1024;

pub(super) const RESOURCE_TYPE: ResourceType = ResourceType {
    key: "kernel-param",
    name: "KernelParam",
    target: "name",
    settings: &[],
    attributes: &[Attribute::new("value")],
    first: FirstAttribute::Required,
    inspect,
};

fn inspect<'a>(
    entry: &'a Entry,
    _: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    let path = sysctl_path(&entry.target())?;
    Ok(Box::new(move |attribute| match attribute {
        "value" => {
            let value = files::read_to_string(&path, MAX_VALUE)?;
            Ok(value.trim().into())
        }
        other => not_implemented(other),
    }))
}

/// Returns the path of a parameter. As in sysctl, the first separator decides: after a slash, dots
/// are part of names, as in `net/ipv4/conf/eth0.1/forwarding`.
fn sysctl_path(name: &str) -> Result<PathBuf, InspectError> {
    let separator = match name.find(['.', '/']) {
        Some(at) if name.get(at..).is_some_and(|rest| rest.starts_with('/')) => '/',
        _ => '.',
    };
    let parts: Vec<&str> = name.split(separator).collect();
    let is_invalid =
        |part: &&str| part.is_empty() || *part == "." || *part == ".." || part.contains('\0');
    if parts.iter().any(is_invalid) {
        let (what, name) = ("kernel parameter", name.to_owned());
        return Err(InspectError::Name { what, name });
    }
    // With dots as separators, a slash means a dot.
    let decode = |part: &&str| match separator {
        '.' => part.replace('/', "."),
        _ => (*part).to_owned(),
    };
    Ok(parts
        .iter()
        .map(decode)
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
            assert_eq!(sysctl_path(name).unwrap(), Path::new(path));
        }
    }

    #[test]
    fn names_outside_of_proc_sys_are_refused() {
        for name in ["", "a/../../b", "/etc/passwd", "a..b", "./a", "a.\0"] {
            assert!(sysctl_path(name).is_err(), "{name:?}");
        }
    }
}
